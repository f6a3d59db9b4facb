// SPDX-License-Identifier: Apache-2.0
#include "app/replay.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "app/bench_plan.h"
#include "app/machine_cost.h"
#include "app/plot_files.h"
#include "app/policy_state_file.h"
#include "app/replay_control_plane.h"
#include "app/text_file.h"
#include "base/clock.h"
#include "base/format.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/replace_file.h"
#include "kv/policy_state.h"
#include "workload/cost_presets.h"
#include "workload/plan_trace.h"
#include "workload/plot.h"
#include "workload/policy_variant.h"
#include "workload/reference.h"
#include "workload/replay.h"
#include "workload/replay_stats.h"
#include "workload/replay_table.h"
#include "workload/sessions.h"
#include "workload/sweep.h"
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
  PacingOptions pacing;
  pacing.rate = command.qps;
  KVIK_ASSIGN(const BenchPlan plan, MakeBenchPlan(load, pacing));
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

// What every cell of a run is made from.
struct Bench {
  std::vector<Trace> traces;
  std::vector<double> p99_gaps_s;  // of each trace; empty if no policy asks for them
  kv::PolicyOptions policy;        // what all policies share
  bool queue = false;
  double hint_accuracy = -1;
  std::string policy_state;        // that the policy starts from; empty: nothing
  std::string* learned = nullptr;  // what it knows at the end goes here
  Progress::Mode progress = Progress::Mode::kAuto;
};

// `stats`: of the first trace.
Result<ReplayCell> RunCell(const Bench& bench, const workload::PolicyVariant& variant,
                           const kv::PolicyOptions& shared, int32_t blocks,
                           workload::HitStats& stats) {
  const SystemClock wall;
  const ThreadCpuClock busy;
  size_t total = 0;
  for (const Trace& trace : bench.traces) {
    total += trace.requests.size();
  }
  Progress progress(wall, {.label = variant.label + " " + std::to_string(blocks),
                           .total = total,
                           .mode = bench.progress});
  std::vector<ReplayCell> cells;
  size_t before = 0;
  for (size_t i = 0; i < bench.traces.size(); ++i) {
    workload::ReplayOptions options;
    options.policy = OptionsOf(variant, shared, bench.p99_gaps_s.empty() ? 0 : bench.p99_gaps_s[i]);
    options.cache_blocks = blocks;
    options.queue = bench.queue;
    options.hint_accuracy = bench.hint_accuracy;
    options.policy_state = bench.policy_state;
    if (bench.learned != nullptr) {
      options.at_end = [&](const kv::EvictionPolicy& knowing) {
        *bench.learned = kv::WritePolicyState(knowing, bench.traces[i].block_size_tokens);
      };
    }
    size_t done = 0;
    options.observe = [&](const workload::RequestOutcome& outcome) {
      progress.Update(before + ++done);
      if (i == 0) {
        stats.Add(outcome);
      }
    };
    KVIK_ASSIGN(ReplayCell cell, workload::Replay(bench.traces[i], options, busy));
    cells.push_back(std::move(cell));
    before += bench.traces[i].requests.size();
  }
  progress.Finish();
  ReplayCell mean = workload::MeanOf(cells);
  mean.policy = variant.label;
  mean.offline = IsOffline(variant);
  return mean;
}

Result<kv::CostModel> CostNamed(const std::string& text) {
  constexpr std::string_view kMachine = "machine";
  if (!text.starts_with(kMachine) ||
      (text.size() > kMachine.size() && text[kMachine.size()] != ':')) {
    return workload::ParseCost(text);
  }
  const size_t after = std::min(kMachine.size() + 1, text.size());
  KVIK_ASSIGN(const KeptCost kept, NewestKeptCost(DefaultCostFolder(), text.substr(after)));
  LogInfo("cost: %.1f us a token, %.4f us a token and position, measured of %s", kept.model.a_us(),
          kept.model.c_us(), kept.key.c_str());
  return kept.model;
}

Result<std::vector<workload::PolicyVariant>> VariantsOf(const ReplayCommand& command) {
  std::vector<workload::PolicyVariant> variants;
  for (const std::string& text : command.policies) {
    KVIK_ASSIGN(workload::PolicyVariant variant, workload::ParsePolicyVariant(text));
    variants.push_back(std::move(variant));
  }
  if (command.cache_blocks.empty() || variants.empty()) {
    return Err(ErrorCode::kInvalidInput, "give at least one policy and one size of the cache");
  }
  return variants;
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

std::string SizeOfTraces(const std::vector<Trace>& traces) {
  const Trace& first = traces.front();
  std::string text = Format("%s: %zu requests, blocks of %d tokens", first.name.c_str(),
                            first.requests.size(), first.block_size_tokens);
  return text + (traces.size() > 1 ? Format(", mean of %zu traces\n", traces.size()) : "\n");
}

Result<void> RunSweep(const ReplayCommand& command, const Bench& bench,
                      const std::vector<workload::PolicyVariant>& variants,
                      const workload::Sweep& sweep, std::vector<workload::Plot>& plots) {
  std::vector<workload::SweepCell> cells;
  for (const int32_t blocks : command.cache_blocks) {
    for (const double value : sweep.values) {
      for (workload::PolicyVariant variant : variants) {
        kv::PolicyOptions shared = bench.policy;
        workload::Turn(sweep.knob, value, variant, shared);
        workload::HitStats unused(bench.traces.front());
        KVIK_ASSIGN(const ReplayCell cell, RunCell(bench, variant, shared, blocks, unused));
        cells.push_back({value, cell});
        if (command.json) {
          std::fputs(workload::SweepCellJson(sweep, cells.back()).c_str(), stdout);
          std::fflush(stdout);
        }
      }
    }
  }
  if (!command.json) {
    std::printf("\n%s", workload::FormatSweep(sweep, cells).c_str());
  }
  for (workload::Plot& plot : workload::SweepPlots(sweep, cells)) {
    plots.push_back(std::move(plot));
  }
  return {};
}

Result<int> RunSweeps(const ReplayCommand& command, const Bench& bench,
                      const std::vector<workload::PolicyVariant>& variants,
                      const std::vector<workload::Sweep>& sweeps) {
  if (!command.json) {
    std::fputs(SizeOfTraces(bench.traces).c_str(), stdout);
    std::printf("99th percentile of reuse gaps: %.4g s\n", bench.p99_gaps_s.front());
  }
  std::vector<workload::Plot> plots;
  for (const workload::Sweep& sweep : sweeps) {
    KVIK_TRY(RunSweep(command, bench, variants, sweep, plots));
  }
  KVIK_TRY(WritePlots(command.csv_path, command.svg_path, plots));
  return 0;
}

ControlPlaneCommand ControlPlaneOf(const ReplayCommand& command, const kv::PolicyOptions& policy,
                                   const std::vector<workload::PolicyVariant>& variants) {
  ControlPlaneCommand control;
  control.variants = variants;
  control.cache_blocks = command.cache_blocks;
  control.policy = policy;
  control.seed = command.load.seed;
  control.cumulative = command.cumulative;
  control.requests = command.load.requests.value_or(command.cumulative ? 2400 : 40);
  control.csv_path = command.csv_path;
  control.svg_path = command.svg_path;
  control.json = command.json;
  control.progress = command.progress;
  return control;
}

Result<void> CheckStateOptions(const ReplayCommand& command,
                               const std::vector<workload::PolicyVariant>& variants) {
  const bool reads = !command.policy_state_path.empty();
  const bool writes = !command.save_state_path.empty();
  if ((reads || writes) && (variants.size() != 1 || command.control_plane)) {
    return Err(ErrorCode::kInvalidInput,
               "--policy-state and --save-state are for one policy, whose knowledge is no other's, "
               "and a trace or workload");
  }
  if (writes && (command.cache_blocks.size() > 1 || command.seeds > 1 || !command.sweeps.empty())) {
    return Err(ErrorCode::kInvalidInput,
               "--save-state keeps what was learned in one run: give one size of the cache, "
               "one seed and no sweep");
  }
  if (writes && !kv::PolicyLearns(variants.front().policy)) {
    return Err(ErrorCode::kInvalidInput, "policy %s learns nothing that --save-state could keep",
               variants.front().label.c_str());
  }
  if (writes) {
    KVIK_TRY(CheckReplaceable(command.save_state_path));
  }
  return {};
}

}  // namespace

Result<int> RunReplay(const ReplayCommand& command) {
  KVIK_ASSIGN(const std::vector<workload::PolicyVariant> variants, VariantsOf(command));
  KVIK_TRY(CheckStateOptions(command, variants));
  Bench bench;
  bench.policy = command.policy;
  bench.policy.seed = command.load.seed;
  KVIK_ASSIGN(bench.policy.cost, CostNamed(command.cost));
  if (command.control_plane) {
    return RunControlPlane(ControlPlaneOf(command, bench.policy, variants));
  }
  std::vector<workload::Sweep> sweeps;
  for (const std::string& text : command.sweeps) {
    KVIK_ASSIGN(workload::Sweep sweep, workload::ParseSweep(text));
    sweeps.push_back(std::move(sweep));
  }
  std::optional<workload::Reference> reference;
  if (!command.reference_path.empty()) {
    KVIK_ASSIGN(const MappedFile file, MappedFile::Open(command.reference_path));
    KVIK_ASSIGN(reference, workload::Reference::Parse(TextOf(file), command.reference_path));
  }
  KVIK_ASSIGN(bench.traces, Traces(command));
  if (command.tier.bytes_per_s > 0) {
    bench.policy.tier = std::make_shared<kv::FixedTierCost>(command.tier);
  }
  bench.queue = command.queue;
  bench.hint_accuracy = command.hint_accuracy;
  bench.progress = command.progress;
  const bool wants_p99 = !sweeps.empty() || std::any_of(variants.begin(), variants.end(),
                                                        [](const workload::PolicyVariant& v) {
                                                          return v.lifespan_in_p99 > 0;
                                                        });
  for (size_t i = 0; wants_p99 && i < bench.traces.size(); ++i) {
    bench.p99_gaps_s.push_back(workload::ReuseGapP99(bench.traces[i]));
  }
  if (!command.policy_state_path.empty()) {
    KVIK_ASSIGN(bench.policy_state,
                LoadPolicyState(command.policy_state_path, variants.front().policy,
                                bench.traces.front().block_size_tokens));
  }
  std::string learned;
  bench.learned = command.save_state_path.empty() ? nullptr : &learned;
  if (!sweeps.empty()) {
    return RunSweeps(command, bench, variants, sweeps);
  }
  std::vector<ReplayCell> cells;
  NamedStats hits;
  for (const int32_t blocks : command.cache_blocks) {
    for (const workload::PolicyVariant& variant : variants) {
      workload::HitStats hit(bench.traces.front());
      KVIK_ASSIGN(const ReplayCell cell, RunCell(bench, variant, bench.policy, blocks, hit));
      if (!cell.only_bound) {
        hits.emplace_back(variant.label + " " + std::to_string(blocks), hit);
      }
      cells.push_back(cell);
      if (command.json) {
        std::fputs(workload::CellJson(cell).c_str(), stdout);
        std::fflush(stdout);
      }
    }
  }
  if (!command.json) {
    std::fputs(SizeOfTraces(bench.traces).c_str(), stdout);
    std::fputs(workload::FormatCells(cells, reference ? &*reference : nullptr).c_str(), stdout);
  }
  std::vector<workload::Plot> plots = {MissCostPlot(cells)};
  if (command.stats) {
    const auto gaps = workload::ReuseGapsOf(bench.traces.front());
    plots.push_back(workload::ReuseGapPlot(bench.traces.front(), gaps, command.policy));
    plots.push_back(PositionPlot(hits));
    if (!command.json) {
      std::printf("\n%s\n%s", workload::FormatGaps(gaps).c_str(),
                  workload::FormatHits(hits).c_str());
    }
  }
  KVIK_TRY(WritePlots(command.csv_path, command.svg_path, plots));
  if (!command.save_state_path.empty()) {
    KVIK_TRY(ReplaceTextFile(command.save_state_path, learned));
  }
  return 0;
}

}  // namespace kvik::app
