// SPDX-License-Identifier: Apache-2.0
// app/bench.h: kvik bench: a load on any OpenAI server, and what it took.
#pragma once

#include <cstdint>
#include <string>

#include "base/progress.h"
#include "base/result.h"
#include "workload/multi_turn.h"

namespace kvik::app {

struct BenchOptions {
  std::string base_url = "http://127.0.0.1:8000";
  std::string api_key;
  std::string model;  // empty = the first that the server lists
  workload::MultiTurnOptions load;
  int32_t concurrency = 4;    // sessions at once
  int32_t max_tokens = 32;    // of each answer
  int32_t warmup_passes = 0;  // whole passes over the load that are not measured
  bool cold = false;         // every request has a cache salt of its own, so that nothing is reused
  std::string outputs_path;  // answers: recorded if the file is not there, else compared with it
  bool json = false;
  Progress::Mode progress = Progress::Mode::kAuto;
};

// Closed loop: a session sends its next turn when the answer to the last is complete. Answers are
// greedy. Exit code 1 when requests failed or answers differ from the recorded ones.
Result<int> Bench(const BenchOptions& options);

}  // namespace kvik::app
