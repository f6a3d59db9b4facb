// SPDX-License-Identifier: Apache-2.0
// app/bench_plan.h: the load that the flags of kvik bench ask for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "workload/arrivals.h"
#include "workload/load_plan.h"

namespace kvik::app {

struct WorkloadOptions {
  // One that IsWorkload: multi-turn, random, shared-prefix, shared-docs, longbench:RATIO,
  // loogle:RATIO, agentic, trace
  std::string name;
  std::string trace_path;
  std::string bfcl_folder;          // data of the package bfcl-eval; empty: made up
  std::optional<int32_t> sessions;  // of multi-turn and agentic; none = the workload's own number
  std::optional<int32_t> requests;  // of the others; likewise
  std::optional<int32_t> turns;     // of a session, likewise; agentic: at most so many tool calls
  int32_t system_words = 60;        // multi-turn
  int32_t turn_words = 100;         // multi-turn
  int32_t max_tokens = 32;          // multi-turn: of an answer
  int32_t input_tokens = 512;       // random, shared-prefix; shared-docs: of a document
  int32_t output_tokens = 64;       // random, shared-prefix, shared-docs
  double spread = 0;                // of both, random and shared-prefix
  int32_t prefix_tokens = 1024;     // shared-prefix
  int32_t prefixes = 4;             // shared-prefix: how many
  int32_t documents = 8;            // shared-docs: how many
  int32_t documents_per_request = 3;
  int32_t result_words = 400;  // agentic: of what a tool finds
  int32_t context_tokens = 0;  // no longer requests; 0 = the workload's own limit
  int32_t scale = 1;           // lengths are divided by it
  uint64_t seed = 0;
};

// Whether there is a workload of this name.
bool IsWorkload(const std::string& name);

struct PacingOptions {
  std::optional<int32_t> concurrency;  // closed loop: sessions at once
  std::optional<double> rate;          // open loop: requests a second
  std::optional<workload::ArrivalProcess> arrival;
  std::optional<double> cv;
  double speedup = 1;  // times of a trace and pauses within sessions are divided by it
};

struct BenchPlan {
  workload::LoadPlan load;
  std::vector<double> starts_s;  // of the sessions; empty: closed loop
  int32_t concurrency = 4;       // then
};

// kInvalidInput names the flag to change; kNotFound the file that cannot be read.
Result<BenchPlan> MakeBenchPlan(const WorkloadOptions& options, const PacingOptions& pacing);

}  // namespace kvik::app
