// SPDX-License-Identifier: Apache-2.0
#include "app/replay.h"

#include <cstdio>
#include <filesystem>
#include <string_view>

#include "base/clock.h"
#include "base/mapped_file.h"
#include "workload/cost_presets.h"
#include "workload/replay.h"
#include "workload/replay_table.h"
#include "workload/sessions.h"
#include "workload/trace_reader.h"

namespace kvik::app {
namespace {

Result<workload::Trace> ReadTrace(const ReplayCommand& command) {
  KVIK_ASSIGN(const MappedFile file, MappedFile::Open(command.trace_path));
  const auto bytes = file.bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  KVIK_ASSIGN(workload::Trace trace, workload::ParseTrace(text, command.trace_path));
  trace.name = std::filesystem::path(command.trace_path).stem().string();
  workload::AnnotateSessions(trace);
  if (command.session_sample > 1) {
    workload::SampleSessions(trace, command.session_sample);
  }
  return trace;
}

}  // namespace

Result<int> RunReplay(const ReplayCommand& command) {
  KVIK_ASSIGN(const kv::CostModel cost, workload::ParseCost(command.cost));
  KVIK_ASSIGN(const workload::Trace trace, ReadTrace(command));
  if (trace.requests.empty()) {
    return Err(ErrorCode::kInvalidInput, "no session is left: lower --session-sample");
  }
  const SystemClock clock;
  std::vector<workload::ReplayCell> cells;
  for (const int32_t blocks : command.cache_blocks) {
    for (const std::string& policy : command.policies) {
      Progress progress(clock, {.label = policy + " " + std::to_string(blocks),
                                .total = trace.requests.size(),
                                .mode = command.progress});
      workload::ReplayOptions options;
      options.policy = command.policy;
      options.policy.name = policy;
      options.policy.cost = cost;
      options.cache_blocks = blocks;
      options.progress = [&](size_t done) { progress.Update(done); };
      KVIK_ASSIGN(const workload::ReplayCell cell, workload::Replay(trace, options, clock));
      progress.Finish();
      cells.push_back(cell);
      if (command.json) {
        std::fputs(workload::CellJson(cell).c_str(), stdout);
        std::fflush(stdout);
      }
    }
  }
  if (!command.json) {
    std::printf("%s: %zu requests, blocks of %d tokens\n%s", trace.name.c_str(),
                trace.requests.size(), trace.block_size_tokens,
                workload::FormatCells(cells).c_str());
  }
  return 0;
}

}  // namespace kvik::app
