// SPDX-License-Identifier: Apache-2.0
#include "app/replay.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "app/bench_plan.h"
#include "app/plot_files.h"
#include "app/policy_state_file.h"
#include "app/text_file.h"
#include "base/clock.h"
#include "base/mapped_file.h"
#include "kv/policy_state.h"
#include "workload/control_plane.h"
#include "workload/cost_presets.h"
#include "workload/plan_trace.h"
#include "workload/plot.h"
#include "workload/reference.h"
#include "workload/replay.h"
#include "workload/replay_stats.h"
#include "workload/replay_table.h"
#include "workload/sessions.h"
#include "workload/trace_reader.h"

namespace kvik::app {
namespace {

using workload::ReplayCell;
using workload::Trace;

std::string_view TextOf(const MappedFile& file) {
  const auto bytes = file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Result<Trace> ReadTrace(const ReplayCommand& command) {
  KVIK_ASSIGN(const MappedFile file, MappedFile::Open(command.load.trace_path));
  KVIK_ASSIGN(Trace trace, workload::ParseTrace(TextOf(file), command.load.trace_path));
  trace.name = std::filesystem::path(command.load.trace_path).stem().string();
  workload::AnnotateSessions(trace);
  if (command.session_sample > 1) {
    workload::SampleSessions(trace, command.session_sample);
  }
  if (trace.requests.empty()) {
    return Err(ErrorCode::kInvalidInput, "no session is left: lower --session-sample");
  }
  return trace;
}

// As kvik bench would send it to a server that needs no time.
Result<Trace> MakeTrace(const ReplayCommand& command, uint64_t seed) {
  WorkloadOptions load = command.load;
  load.seed = seed;
  KVIK_ASSIGN(const BenchPlan plan, MakeBenchPlan(load, {.rate = command.qps}));
  Trace trace = workload::TraceOf(plan.load, plan.starts_s, command.block_size_tokens);
  trace.name = load.name;
  return trace;
}

Result<std::vector<Trace>> Traces(const ReplayCommand& command) {
  const bool made_up = !command.load.name.empty() && command.load.name != "trace";
  if (command.load.trace_path.empty() != made_up) {
    return Err(ErrorCode::kInvalidInput, "give --trace FILE or --workload NAME, and not both");
  }
  std::vector<Trace> traces;
  if (!made_up) {
    KVIK_ASSIGN(Trace trace, ReadTrace(command));
    traces.push_back(std::move(trace));
  } else {
    for (int32_t i = 0; i < command.seeds; ++i) {
      KVIK_ASSIGN(Trace trace, MakeTrace(command, command.load.seed + static_cast<uint64_t>(i)));
      traces.push_back(std::move(trace));
    }
  }
  if (!command.name.empty()) {
    for (Trace& trace : traces) {
      trace.name = command.name;
    }
  }
  return traces;
}

// `stats`: of the first trace.
Result<ReplayCell> RunCell(const std::vector<Trace>& traces, workload::ReplayOptions options,
                           Progress::Mode mode, workload::HitStats& stats) {
  const SystemClock wall;
  const ThreadCpuClock busy;
  size_t total = 0;
  for (const Trace& trace : traces) {
    total += trace.requests.size();
  }
  Progress progress(wall,
                    {.label = options.policy.name + " " + std::to_string(options.cache_blocks),
                     .total = total,
                     .mode = mode});
  std::vector<ReplayCell> cells;
  size_t before = 0;
  for (const Trace& trace : traces) {
    size_t done = 0;
    options.observe = [&](const workload::RequestOutcome& outcome) {
      progress.Update(before + ++done);
      if (before == 0) {
        stats.Add(outcome);
      }
    };
    KVIK_ASSIGN(ReplayCell cell, workload::Replay(trace, options, busy));
    cells.push_back(std::move(cell));
    before += trace.requests.size();
  }
  progress.Finish();
  return workload::MeanOf(cells);
}

kv::PolicyOptions PolicyOf(const ReplayCommand& command, const std::string& name,
                           const kv::CostModel& cost) {
  kv::PolicyOptions options = command.policy;
  options.name = name;
  options.cost = cost;
  options.seed = command.load.seed;
  return options;
}

Result<int> RunControlPlane(const ReplayCommand& command, const kv::CostModel& cost) {
  const ThreadCpuClock clock;
  if (!command.json) {
    std::printf("%-16s %9s %12s %14s %22s %9s   us a request of 35,000 tokens\n", "policy",
                "blocks", "select", "policy, other", "lookup pin erase publ.", "victims");
  }
  for (const int32_t blocks : command.cache_blocks) {
    for (const std::string& policy : command.policies) {
      workload::ControlPlaneOptions options;
      options.policy = PolicyOf(command, policy, cost);
      options.cache_blocks = blocks;
      options.seed = command.load.seed;
      KVIK_ASSIGN(const workload::ControlPlaneCost us,
                  workload::MeasureControlPlane(options, clock));
      std::printf(
          command.json
              ? "{\"policy\":\"%s\",\"cache_blocks\":%d,\"select_us\":%.1f,\"policy_us\":%.1f,"
                "\"cache_us\":%.1f,\"victims\":%.0f}\n"
              : "%-16s %9d %12.1f %14.1f %22.1f %9.0f\n",
          policy.c_str(), blocks, us.select_us, us.policy_us, us.cache_us, us.victims);
      std::fflush(stdout);
    }
  }
  return 0;
}

workload::Plot MissCostPlot(const std::vector<ReplayCell>& cells) {
  workload::Plot plot{cells.front().trace, "cache blocks", "miss cost, %", true, {}};
  for (const ReplayCell& cell : cells) {
    auto series = std::find_if(plot.series.begin(), plot.series.end(),
                               [&](const workload::Series& s) { return s.name == cell.policy; });
    if (series == plot.series.end()) {
      series = plot.series.insert(series, workload::Series{cell.policy, {}});
    }
    series->points.emplace_back(cell.cache_blocks, cell.miss_cost_pct);
  }
  for (workload::Series& series : plot.series) {
    std::sort(series.points.begin(), series.points.end());
  }
  return plot;
}

using NamedStats = std::vector<std::pair<std::string, workload::HitStats>>;

workload::Plot PositionPlot(const NamedStats& stats) {
  workload::Plot plot{
      "hits by position", "position in the prompt, %", "blocks cached, %", false, {}};
  for (const auto& [name, hit] : stats) {
    workload::Series series{name, {}};
    const auto percent = hit.HitPctByPosition();
    for (size_t i = 0; i < percent.size(); ++i) {
      series.points.emplace_back(
          100 * (static_cast<double>(i) + 0.5) / static_cast<double>(percent.size()), percent[i]);
    }
    plot.series.push_back(std::move(series));
  }
  return plot;
}

Result<void> WritePlots(const ReplayCommand& command, const std::vector<workload::Plot>& plots) {
  if (!command.csv_path.empty()) {
    KVIK_TRY(WriteTextFile(command.csv_path, PlotsCsv(plots)));
  }
  if (!command.svg_path.empty()) {
    KVIK_TRY(WriteTextFile(command.svg_path, PlotsSvg(plots)));
  }
  return {};
}

Result<void> CheckStateOptions(const ReplayCommand& command) {
  const bool reads = !command.policy_state_path.empty();
  const bool writes = !command.save_state_path.empty();
  if ((reads || writes) && (command.policies.size() != 1 || command.control_plane)) {
    return Err(ErrorCode::kInvalidInput,
               "--policy-state and --save-state are for one policy, whose knowledge is no other's, "
               "and a trace or workload");
  }
  if (writes && (command.cache_blocks.size() > 1 || command.seeds > 1)) {
    return Err(ErrorCode::kInvalidInput,
               "--save-state keeps what was learned in one run: give one size of the cache and "
               "one seed");
  }
  if (writes && !kv::PolicyLearns(command.policies.front())) {
    return Err(ErrorCode::kInvalidInput, "policy %s learns nothing that --save-state could keep",
               command.policies.front().c_str());
  }
  if (writes) {
    KVIK_TRY(CheckReplaceable(command.save_state_path));
  }
  return {};
}

}  // namespace

Result<int> RunReplay(const ReplayCommand& command) {
  KVIK_TRY(CheckStateOptions(command));
  KVIK_ASSIGN(const kv::CostModel cost, workload::ParseCost(command.cost));
  if (command.control_plane) {
    return RunControlPlane(command, cost);
  }
  std::optional<workload::Reference> reference;
  if (!command.reference_path.empty()) {
    KVIK_ASSIGN(const MappedFile file, MappedFile::Open(command.reference_path));
    KVIK_ASSIGN(reference, workload::Reference::Parse(TextOf(file), command.reference_path));
  }
  KVIK_ASSIGN(const std::vector<Trace> traces, Traces(command));
  if (command.cache_blocks.empty() || command.policies.empty()) {
    return Err(ErrorCode::kInvalidInput, "give at least one policy and one size of the cache");
  }
  std::vector<ReplayCell> cells;
  NamedStats hits;
  std::string start;
  if (!command.policy_state_path.empty()) {
    KVIK_ASSIGN(start, LoadPolicyState(command.policy_state_path, command.policies.front(),
                                       traces.front().block_size_tokens));
  }
  std::string learned;
  for (const int32_t blocks : command.cache_blocks) {
    for (const std::string& policy : command.policies) {
      workload::ReplayOptions options;
      options.policy = PolicyOf(command, policy, cost);
      options.cache_blocks = blocks;
      options.queue = command.queue;
      options.policy_state = start;
      if (!command.save_state_path.empty()) {
        options.at_end = [&](const kv::EvictionPolicy& knowing) {
          learned = kv::WritePolicyState(knowing, traces.front().block_size_tokens);
        };
      }
      workload::HitStats hit(traces.front());
      KVIK_ASSIGN(const ReplayCell cell, RunCell(traces, options, command.progress, hit));
      if (!cell.only_bound) {
        hits.emplace_back(policy + " " + std::to_string(blocks), hit);
      }
      cells.push_back(cell);
      if (command.json) {
        std::fputs(workload::CellJson(cell).c_str(), stdout);
        std::fflush(stdout);
      }
    }
  }
  if (!command.json) {
    std::printf("%s: %zu requests, blocks of %d tokens", traces.front().name.c_str(),
                traces.front().requests.size(), traces.front().block_size_tokens);
    std::printf(traces.size() > 1 ? ", mean of %zu traces\n" : "\n", traces.size());
    std::fputs(workload::FormatCells(cells, reference ? &*reference : nullptr).c_str(), stdout);
  }
  std::vector<workload::Plot> plots = {MissCostPlot(cells)};
  if (command.stats) {
    const auto gaps = workload::ReuseGapsOf(traces.front());
    plots.push_back(workload::ReuseGapPlot(traces.front(), gaps, command.policy));
    plots.push_back(PositionPlot(hits));
    if (!command.json) {
      std::printf("\n%s\n%s", workload::FormatGaps(gaps).c_str(),
                  workload::FormatHits(hits).c_str());
    }
  }
  KVIK_TRY(WritePlots(command, plots));
  if (!command.save_state_path.empty()) {
    KVIK_TRY(ReplaceTextFile(command.save_state_path, learned));
  }
  return 0;
}

}  // namespace kvik::app
