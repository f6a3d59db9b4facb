// SPDX-License-Identifier: Apache-2.0
// app/load_runner.h: sends a plan to a server, each call at its time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "app/bench_client.h"
#include "app/bench_plan.h"
#include "base/clock.h"
#include "base/progress.h"
#include "base/types.h"
#include "workload/load_report.h"

namespace kvik::app {

// By session and call within it.
using ForcedOutputs = std::map<std::pair<int32_t, int32_t>, std::vector<TokenId>>;

struct LoadRunOptions {
  BenchTarget target;
  double speedup = 1;             // pauses within sessions are divided by it
  int32_t max_connections = 512;  // requests at once; what is due beyond them is sent late
  int32_t warmup_sessions = 0;    // the first so many to start are not measured
  bool force_outputs = true;      // as planned, where the plan has an answer of tokens
  bool hints = false;             // kvik.will_continue tells what the plan knows
  std::string session_prefix;     // of their names
  std::string salt;               // if not empty, every request has a cache salt of its own
  std::string label;              // of the progress
  Progress::Mode progress = Progress::Mode::kAuto;
};

struct LoadOutcome {
  std::vector<workload::RequestRecord> records;  // by session, then call
  int64_t wall_us = 0;  // from the first measured request's time to the last answer
};

// Threads are made as calls need them, each with a connection. A failed call is a failed record;
// its session goes on. `alphabet`: tokens that prompts may be made of; `forced` comes before the
// plan's own answers. Returns when every call was answered or failed.
LoadOutcome RunLoad(const BenchPlan& plan, const std::vector<TokenId>& alphabet,
                    const ForcedOutputs& forced, const LoadRunOptions& options, const Clock& clock);

}  // namespace kvik::app
