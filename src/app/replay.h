// SPDX-License-Identifier: Apache-2.0
// app/replay.h: kvik replay: what eviction policies do with a trace, side by side.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/bench_plan.h"
#include "base/progress.h"
#include "base/result.h"
#include "kv/eviction_policy.h"

namespace kvik::app {

struct ReplayCommand {
  // A trace (load.trace_path, no name or "trace") or what kvik bench would send (load.name).
  WorkloadOptions load;
  std::string name;  // in results; empty: the file's or the workload's
  // Of the trace.
  uint32_t session_sample = 1;
  // Of the workload.
  double qps = 0.02;
  int32_t block_size_tokens = 64;
  int32_t seeds = 1;  // loads made with load.seed, load.seed + 1, ...; results are their mean

  std::vector<std::string> policies = {"lru", "hazard"};  // see workload/policy_variant.h
  std::vector<int32_t> cache_blocks;
  std::string cost = "h20-8b";
  kv::PolicyOptions policy;  // knobs that all policies share
  // Of a slower memory below the cache; without a bandwidth there is none.
  kv::FixedTierCost::Numbers tier{.bytes_per_s = 0, .bytes_per_token = 131072};
  // Files as kvik serve --policy-state has them; empty: none. Of one policy, and only the one cell
  // and trace can be saved.
  std::string policy_state_path;    // that the policy starts from
  std::string save_state_path;      // that gets what it knows at the end
  std::string reference_path;       // CSV to compare with
  double hint_accuracy = -1;        // >= 0: requests say whether their session goes on
  bool queue = false;               // requests wait for each other; see workload::ReplayOptions
  std::vector<std::string> sweeps;  // see workload/sweep.h; in place of one set of knobs
  // No trace: what the cache's own work costs; load.requests and load.seed are its own.
  bool control_plane = false;
  bool cumulative = false;  // of control_plane; see app/replay_control_plane.h
  bool stats = false;       // also what kind of reuse the trace has and each policy catches
  std::string csv_path;     // plots as numbers; empty: none
  std::string svg_path;     // plots as a picture; empty: none
  bool json = false;
  Progress::Mode progress = Progress::Mode::kAuto;
};

// Writes one line a cell to standard output, and plots where asked: miss cost against size, with
// `stats` reuse gaps and hits by position; of sweeps, miss cost against each knob.
Result<int> RunReplay(const ReplayCommand& command);

}  // namespace kvik::app
