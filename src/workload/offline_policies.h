// SPDX-License-Identifier: Apache-2.0
// workload/offline_policies.h: policies that know the future, to tell how much is left to gain.
//
//   belady          the block whose next use is furthest away goes first; with prefix hits only
//   belady-compute  of what a block saves and how long it waits for that, the least saving per
//                   request waited goes first; with gaps
//   bound           no policy: see workload/offline_bound.h
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "kv/eviction_policy.h"
#include "workload/future.h"

namespace kvik::workload {

std::span<const std::string_view> OfflinePolicyNames();

// An offline policy by its name, else what kv::MakeEvictionPolicy makes of it. `future` must
// outlive the policy, and its present be the request that the cache works for.
Result<std::unique_ptr<kv::EvictionPolicy>> MakeReplayPolicy(const kv::PolicyOptions& options,
                                                             Future& future);

}  // namespace kvik::workload
