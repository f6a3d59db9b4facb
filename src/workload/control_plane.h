// SPDX-License-Identifier: Apache-2.0
// workload/control_plane.h: what the cache's own work costs a long request: no model, only
// bookkeeping.
#pragma once

#include <cstdint>
#include <functional>

#include "base/clock.h"
#include "base/result.h"
#include "kv/eviction_policy.h"

namespace kvik::workload {

struct ControlPlaneOptions {
  kv::PolicyOptions policy;
  int32_t cache_blocks = 131072;
  int32_t block_size_tokens = 16;
  int32_t request_tokens = 35000;  // 2,188 blocks
  int32_t requests = 40;           // measured
  bool warmup = true;              // as many as fill the cache twice come before, unmeasured
  uint64_t seed = 0;
};

// Means over the measured requests, in microseconds a request.
struct ControlPlaneCost {
  double select_us = 0;  // EvictionPolicy::SelectVictims
  double policy_us = 0;  // the policy's other calls
  double cache_us = 0;   // lookup, pin, erase, publish, without the policy
  double victims = 0;    // a request

  [[nodiscard]] double total_us() const { return select_us + policy_us + cache_us; }
};

// Every second request goes on with the first half of one that came earlier, which may be cached
// or not; the rest of its blocks are new. A second passes between requests. `observe`, if any, is
// called after every measured request with how many there were and their mean so far.
Result<ControlPlaneCost> MeasureControlPlane(
    const ControlPlaneOptions& options, const Clock& clock,
    const std::function<void(int32_t, const ControlPlaneCost&)>& observe = {});

}  // namespace kvik::workload
