// SPDX-License-Identifier: Apache-2.0
// workload/policy_variant.h: one policy in more than one set-up, side by side in one table.
//
//   asym           as the options that all policies share say
//   asym@scan      a pass over all blocks for every victim; asym@batch: one for all of them
//   asym@p99       its lifespan is the 99th percentile of all reuse gaps of the trace, which only
//   asym@p99x0.5   somebody who has read the trace to its end can know: offline; or a multiple
//
// Policies ignore what they have no use for, as they do with the shared options.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "kv/eviction_policy.h"
#include "workload/trace.h"

namespace kvik::workload {

struct PolicyVariant {
  std::string label;  // as it was asked for
  std::string policy;
  kv::VictimSelection selection = kv::VictimSelection::kAuto;  // kAuto: the shared one
  double lifespan_in_p99 = 0;                                  // 0: the shared one
};

// kInvalidInput names what follows an @ and is none of the above. The policy's own name is not
// checked.
Result<PolicyVariant> ParsePolicyVariant(std::string_view text);

// Whether it decides by what it cannot know yet: by its lifespan, or as a policy.
bool IsOffline(const PolicyVariant& variant);

// `shared` with the variant's policy and set-up. `p99_gap_s`: of the trace; used if
// lifespan_in_p99 > 0.
kv::PolicyOptions OptionsOf(const PolicyVariant& variant, const kv::PolicyOptions& shared,
                            double p99_gap_s);

// 99th percentile of the times between two uses of a block, in seconds; 0 if none is used twice.
double ReuseGapP99(const Trace& trace);

}  // namespace kvik::workload
