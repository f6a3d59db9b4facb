// SPDX-License-Identifier: Apache-2.0
// app/replay_control_plane.h: kvik replay --control-plane: what the cache's own work costs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/result.h"
#include "kv/eviction_policy.h"
#include "workload/policy_variant.h"

namespace kvik::app {

struct ControlPlaneCommand {
  std::vector<workload::PolicyVariant> variants;
  std::vector<int32_t> cache_blocks;
  kv::PolicyOptions policy;  // what the variants share
  uint64_t seed = 0;
  int32_t requests = 40;    // measured, a cell
  bool cumulative = false;  // seconds from an empty cache on, request after request
  std::string csv_path;
  std::string svg_path;
  bool json = false;
  Progress::Mode progress = Progress::Mode::kAuto;
};

// Writes a line a cell to standard output, as soon as it is measured. Plots: microseconds against
// the size of the cache; cumulative: seconds against requests.
Result<int> RunControlPlane(const ControlPlaneCommand& command);

}  // namespace kvik::app
