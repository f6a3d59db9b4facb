// SPDX-License-Identifier: Apache-2.0
#include "workload/replay_table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/format.h"

namespace kvik::workload {
namespace {

constexpr double kNear = 1.0;  // points of miss cost

double Rounded(double value, double digits) { return std::round(value * digits) / digits; }

// Another replay names no set-ups: "asym@p99" is its "asym", unless it has that very name.
std::optional<double> TheirsOf(const Reference& reference, const ReplayCell& cell) {
  const auto exact = reference.MissCostPct(cell.trace, cell.cache_blocks, cell.policy);
  return exact ? exact
               : reference.MissCostPct(cell.trace, cell.cache_blocks,
                                       cell.policy.substr(0, cell.policy.find('@')));
}

}  // namespace

std::string FormatCells(std::span<const ReplayCell> cells, const Reference* reference) {
  std::string text =
      Format("%-16s %8s %9s %10s %9s %11s %8s %5s %8s", "policy", "blocks", "miss cost",
             "block hit", "prefix", "request hit", "segments", "p99", "us/req");
  const bool ttft =
      std::any_of(cells.begin(), cells.end(), [](const ReplayCell& cell) { return cell.has_ttft; });
  if (ttft) {
    text += Format(" %11s %9s %9s %9s", "TTFT s mean", "P50", "P90", "P99");
  }
  const bool job =
      std::any_of(cells.begin(), cells.end(), [](const ReplayCell& cell) { return cell.has_job; });
  if (job) {
    text += Format(" %10s %9s", "job s mean", "P90");
  }
  text += reference != nullptr ? "  reference  difference\n" : "\n";
  int compared = 0;
  int within = 0;
  for (const ReplayCell& cell : cells) {
    text += Format("%-16s %8d %8.1f%%", cell.policy.c_str(), cell.cache_blocks, cell.miss_cost_pct);
    text += cell.only_bound ? std::string(56, ' ')
                            : Format(" %9.1f%% %8.1f%% %10.1f%% %8.2f %5.0f %8.1f",
                                     cell.block_hit_pct, cell.prefix_hit_pct, cell.request_hit_pct,
                                     cell.segments_mean, cell.segments_p99, cell.us_per_request);
    if (cell.has_ttft) {
      text += Format(" %11.2f %9.2f %9.2f %9.2f", cell.ttft_ms.mean * 1e-3, cell.ttft_ms.p50 * 1e-3,
                     cell.ttft_ms.p90 * 1e-3, cell.ttft_ms.p99 * 1e-3);
    } else if (ttft) {
      text += std::string(42, ' ');
    }
    if (cell.has_job) {
      text += Format(" %10.2f %9.2f", cell.job_s.mean, cell.job_s.p90);
    } else if (job) {
      text += std::string(21, ' ');
    }
    if (reference != nullptr) {
      const auto theirs = TheirsOf(*reference, cell);
      if (theirs) {
        const double difference = cell.miss_cost_pct - *theirs;
        text += Format(" %9.1f%% %+10.1f", *theirs, difference);
        ++compared;
        within += std::abs(difference) <= kNear ? 1 : 0;
      } else {
        text += "          -";
      }
    }
    text += "\n";
  }
  std::string offline;
  for (const ReplayCell& cell : cells) {
    if (cell.offline && offline.find(" " + cell.policy + ",") == std::string::npos) {
      offline += " " + cell.policy + ",";
    }
  }
  if (!offline.empty()) {
    offline.back() = '\n';
    text += "offline, they know the trace to its end:" + offline;
  }
  if (reference != nullptr) {
    text += Format("%d of %d compared cells within %.0f point of the reference\n", within, compared,
                   kNear);
  }
  return text;
}

std::string CellJson(const ReplayCell& cell) {
  nlohmann::ordered_json json;
  json["trace"] = cell.trace;
  json["policy"] = cell.policy;
  json["offline"] = cell.offline;
  json["cache_blocks"] = cell.cache_blocks;
  json["requests"] = cell.requests;
  json["repeats"] = cell.repeats;
  if (cell.only_bound) {
    for (const char* field : {"block_hit_pct", "prefix_hit_pct", "request_hit_pct", "segments_mean",
                              "segments_p99", "us_per_request", "evictions"}) {
      json[field] = nullptr;
    }
    json["miss_cost_pct"] = Rounded(cell.miss_cost_pct, 1e3);
    return json.dump() + "\n";
  }
  json["block_hit_pct"] = Rounded(cell.block_hit_pct, 1e3);
  json["prefix_hit_pct"] = Rounded(cell.prefix_hit_pct, 1e3);
  json["miss_cost_pct"] = Rounded(cell.miss_cost_pct, 1e3);
  json["request_hit_pct"] = Rounded(cell.request_hit_pct, 1e3);
  json["segments_mean"] = Rounded(cell.segments_mean, 1e4);
  json["segments_p99"] = cell.segments_p99;
  json["us_per_request"] = Rounded(cell.us_per_request, 1e2);
  json["evictions"] = cell.evictions;
  if (cell.has_ttft) {
    json["ttft_ms"] = {{"mean", Rounded(cell.ttft_ms.mean, 1e3)},
                       {"p50", Rounded(cell.ttft_ms.p50, 1e3)},
                       {"p90", Rounded(cell.ttft_ms.p90, 1e3)},
                       {"p99", Rounded(cell.ttft_ms.p99, 1e3)}};
  }
  if (cell.has_job) {
    json["job_s"] = {{"mean", Rounded(cell.job_s.mean, 1e4)},
                     {"p50", Rounded(cell.job_s.p50, 1e4)},
                     {"p90", Rounded(cell.job_s.p90, 1e4)},
                     {"p99", Rounded(cell.job_s.p99, 1e4)}};
  }
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace kvik::workload
