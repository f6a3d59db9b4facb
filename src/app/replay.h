// SPDX-License-Identifier: Apache-2.0
// app/replay.h: kvik replay: what eviction policies do with a trace, side by side.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/result.h"
#include "kv/eviction_policy.h"

namespace kvik::app {

struct ReplayCommand {
  std::string trace_path;
  std::vector<std::string> policies = {"lru"};
  std::vector<int32_t> cache_blocks;
  std::string cost = "h20-8b";
  kv::PolicyOptions policy;  // knobs that all policies share
  uint32_t session_sample = 1;
  bool json = false;
  Progress::Mode progress = Progress::Mode::kAuto;
};

// Writes one line a cell to standard output.
Result<int> RunReplay(const ReplayCommand& command);

}  // namespace kvik::app
