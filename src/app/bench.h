// SPDX-License-Identifier: Apache-2.0
// app/bench.h: kvik bench: a load on any OpenAI server, and what it took.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "app/bench_client.h"
#include "app/bench_plan.h"
#include "base/progress.h"
#include "base/result.h"
#include "workload/load_report.h"

namespace kvik::app {

struct BenchOptions {
  BenchTarget target;  // model empty = the first that the server lists
  WorkloadOptions workload;
  PacingOptions pacing;
  int32_t max_connections = 512;
  int32_t warmup_passes = 0;    // whole passes over the load that are not measured
  int32_t warmup_sessions = 0;  // the first so many of the load are not measured
  bool cold = false;            // every request has a cache salt of its own: nothing is reused
  bool hints = false;           // kvik.will_continue is sent
  // Token ids that prompts are made of, [first, second); none = those of some English text.
  std::optional<std::pair<TokenId, TokenId>> token_range;
  std::string outputs_path;  // answers: recorded if the file is not there, else forced
  std::string answers_path;  // answers: recorded if the file is not there, else compared with it
  std::string save_path;     // result with samples, for BenchCompare
  workload::LatencyGoals goals;
  bool json = false;
  Progress::Mode progress = Progress::Mode::kAuto;
};

// Answers are greedy, or forced where the plan or `outputs_path` has them and the server knows
// kvik's fields. Exit code 1 when requests failed or answers differ from the recorded ones.
Result<int> Bench(const BenchOptions& options);

struct BenchCompareOptions {
  std::string a_path;
  std::string b_path;
  int32_t resamples = 2000;
  double confidence = 0.95;
  uint64_t seed = 0;
  bool json = false;
};

// Two results of `save_path`, metric by metric, as ratios B over A with confidence intervals.
Result<int> BenchCompare(const BenchCompareOptions& options);

}  // namespace kvik::app
