// SPDX-License-Identifier: Apache-2.0
#include "app/replay_control_plane.h"

#include <algorithm>
#include <cstdio>

#include "app/plot_files.h"
#include "base/clock.h"
#include "workload/control_plane.h"
#include "workload/plot.h"

namespace kvik::app {
namespace {

using workload::ControlPlaneCost;
using workload::Plot;

constexpr double kShortestUs = 0.1;  // in logarithmic pictures; clocks count in microseconds
constexpr int32_t kPoints = 120;     // of a cumulative series, about

void AddPoint(Plot& plot, const std::string& name, double x, double y) {
  auto series = std::find_if(plot.series.begin(), plot.series.end(),
                             [&](const workload::Series& s) { return s.name == name; });
  if (series == plot.series.end()) {
    series = plot.series.insert(series, workload::Series{name, {}});
  }
  series->points.emplace_back(x, y);
}

void PrintLine(const ControlPlaneCommand& command, const std::string& label, int32_t blocks,
               const ControlPlaneCost& us) {
  const double seconds = us.total_us() * command.requests * 1e-6;
  if (command.json) {
    std::printf(
        "{\"policy\":\"%s\",\"cache_blocks\":%d,\"requests\":%d,\"select_us\":%.1f,"
        "\"policy_us\":%.1f,\"cache_us\":%.1f,\"victims\":%.0f,\"total_s\":%.4f}\n",
        label.c_str(), blocks, command.requests, us.select_us, us.policy_us, us.cache_us,
        us.victims, seconds);
  } else {
    std::printf("%-16s %9d %9d %12.1f %14.1f %22.1f %9.0f %10.3f\n", label.c_str(), blocks,
                command.requests, us.select_us, us.policy_us, us.cache_us, us.victims, seconds);
  }
  std::fflush(stdout);
}

}  // namespace

Result<int> RunControlPlane(const ControlPlaneCommand& command) {
  const ThreadCpuClock clock;
  const SystemClock wall;
  const bool grows = !command.cumulative;
  std::vector<Plot> plots;
  if (grows) {
    for (const char* title : {"selection of victims", "all other work of the cache"}) {
      plots.push_back({title, "cache blocks", "us a request of 35,000 tokens", true, {}, true});
    }
  }
  if (!command.json) {
    std::printf("%-16s %9s %9s %12s %14s %22s %9s %10s   us a request of 35,000 tokens\n", "policy",
                "blocks", "requests", "select", "policy, other", "lookup pin erase publ.",
                "victims", "all, s");
  }
  for (const int32_t blocks : command.cache_blocks) {
    if (command.cumulative) {
      plots.push_back({"the cache's own work, " + std::to_string(blocks) + " blocks",
                       "requests of 35,000 tokens",
                       "seconds, cumulative",
                       false,
                       {},
                       true});
    }
    for (const workload::PolicyVariant& variant : command.variants) {
      if (IsOffline(variant)) {
        return Err(ErrorCode::kInvalidInput, "policy \"%s\" needs a trace: leave it out here",
                   variant.label.c_str());
      }
      workload::ControlPlaneOptions options;
      options.policy = OptionsOf(variant, command.policy, 0);
      options.cache_blocks = blocks;
      options.seed = command.seed;
      options.requests = command.requests;
      options.warmup = grows;
      Progress progress(wall, {.label = variant.label + " " + std::to_string(blocks),
                               .total = static_cast<uint64_t>(command.requests),
                               .mode = command.progress});
      const int32_t every = std::max(command.requests / kPoints, 1);
      const auto observe = [&](int32_t requests, const ControlPlaneCost& so_far) {
        progress.Update(static_cast<uint64_t>(requests));
        if (command.cumulative && requests % every == 0) {
          AddPoint(plots.back(), variant.label, requests,
                   std::max(so_far.total_us() * requests, kShortestUs) * 1e-6);
        }
      };
      KVIK_ASSIGN(const ControlPlaneCost us,
                  workload::MeasureControlPlane(options, clock, observe));
      progress.Finish();
      PrintLine(command, variant.label, blocks, us);
      if (grows) {
        AddPoint(plots[0], variant.label, blocks, std::max(us.select_us, kShortestUs));
        AddPoint(plots[1], variant.label, blocks,
                 std::max(us.policy_us + us.cache_us, kShortestUs));
      }
    }
  }
  KVIK_TRY(WritePlots(command.csv_path, command.svg_path, plots));
  return 0;
}

}  // namespace kvik::app
