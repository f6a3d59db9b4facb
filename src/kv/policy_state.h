// SPDX-License-Identifier: Apache-2.0
// kv/policy_state.h: what a policy learned, as the text of a file that says whose it is.
//
//   {"format": "kvik.policy-state", "version": 1, "policy": "hazard", "block_size_tokens": 16,
//    "state": {...}}                  EvictionPolicy::SaveState
//
// Times in a state are durations, so what a replay learned of a trace serves an engine and the
// other way round. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "kv/eviction_policy.h"

namespace kvik::kv {

// REQUIRES: the policy learns something (PolicyLearns).
std::string WritePolicyState(const EvictionPolicy& policy, int32_t block_size_tokens);

// What RestoreState of the policy takes, which was tried. kInvalidInput with a clause that wants a
// subject: the text is none of this format, is another policy's (not even that of the same one
// without overlays) or of another block size, or the policy refuses it.
Result<std::string> ReadPolicyState(std::string_view text, const std::string& policy,
                                    int32_t block_size_tokens);

}  // namespace kvik::kv
