// SPDX-License-Identifier: Apache-2.0
#include "workload/replay_stats.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <unordered_map>

namespace kvik::workload {
namespace {

constexpr size_t kTurnClasses = 6;  // 1, ..., 5, 6 and later
constexpr int64_t kFewBlocks = 2;
constexpr double kMostShare = 0.75;
constexpr int kCurvePoints = 60;

double Percent(int64_t part, int64_t whole) {
  return whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0;
}

}  // namespace

void HitStats::Add(const RequestOutcome& outcome) {
  if (!outcome.measured) {
    return;
  }
  const size_t blocks = trace_->requests[outcome.request].blocks.size();
  const auto bin = [blocks](size_t block) { return block * kBins / blocks; };
  for (size_t b = 0; b < blocks; ++b) {
    ++blocks_[bin(b)];
  }
  int64_t hits = 0;
  for (const kv::ResidentRun& run : outcome.hits) {
    hits += run.num_blocks;
    for (int32_t b = run.first_block; b < run.first_block + run.num_blocks; ++b) {
      ++hits_[bin(static_cast<size_t>(b))];
    }
  }
  const bool most = static_cast<double>(hits) >= kMostShare * static_cast<double>(blocks);
  ++requests_[hits == 0 ? kNone : most ? kMost : hits <= kFewBlocks ? kFew : kMiddle];
}

std::array<double, HitStats::kBins> HitStats::HitPctByPosition() const {
  std::array<double, kBins> percent{};
  for (size_t i = 0; i < kBins; ++i) {
    percent[i] = Percent(hits_[i], blocks_[i]);
  }
  return percent;
}

std::array<double, HitStats::kNumClasses> HitStats::RequestPctByClass() const {
  int64_t all = 0;
  for (const int64_t requests : requests_) {
    all += requests;
  }
  std::array<double, kNumClasses> percent{};
  for (size_t i = 0; i < kNumClasses; ++i) {
    percent[i] = Percent(requests_[i], all);
  }
  return percent;
}

std::vector<ReuseGaps> ReuseGapsOf(const Trace& trace) {
  struct Use {
    int64_t at_us;
    size_t of_class;
  };
  std::unordered_map<uint64_t, Use> last;
  std::vector<ReuseGaps> gaps(1 + kTurnClasses);
  gaps[0].name = "all";
  for (size_t c = 1; c <= kTurnClasses; ++c) {
    gaps[c].name = "turn " + std::to_string(c) + (c == kTurnClasses ? "+" : "");
  }
  for (const TraceRequest& request : trace.requests) {
    const size_t of_class =
        std::clamp<size_t>(static_cast<size_t>(std::max(request.turn, 1)), 1, kTurnClasses);
    for (const uint64_t block : request.blocks) {
      const auto [it, first] = last.try_emplace(block, Use{request.arrival_us, of_class});
      if (!first) {
        const double gap_s = static_cast<double>(request.arrival_us - it->second.at_us) * 1e-6;
        gaps[0].gaps_s.push_back(gap_s);
        gaps[it->second.of_class].gaps_s.push_back(gap_s);
        it->second = Use{request.arrival_us, of_class};
      }
    }
  }
  std::erase_if(gaps, [](const ReuseGaps& g) { return g.gaps_s.empty(); });
  for (ReuseGaps& g : gaps) {
    std::sort(g.gaps_s.begin(), g.gaps_s.end());
  }
  return gaps;
}

double Quantile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

Plot ReuseGapPlot(const Trace& trace, const std::vector<ReuseGaps>& gaps,
                  const kv::PolicyOptions& options) {
  Plot plot{"reuse gaps of " + trace.name, "seconds", "share of reuses later than this", true, {}};
  if (gaps.empty()) {
    return plot;
  }
  const double longest_s = std::max(gaps.front().gaps_s.back(), 2.0);
  const auto x_at = [longest_s](int i) {
    return std::pow(2 * longest_s, static_cast<double>(i) / kCurvePoints);
  };
  for (const ReuseGaps& g : gaps) {
    Series series{g.name, {}};
    for (int i = 0; i <= kCurvePoints; ++i) {
      const auto later =
          g.gaps_s.end() - std::upper_bound(g.gaps_s.begin(), g.gaps_s.end(), x_at(i));
      series.points.emplace_back(x_at(i),
                                 static_cast<double>(later) / static_cast<double>(g.gaps_s.size()));
    }
    plot.series.push_back(std::move(series));
  }
  const double lifespan_s = options.lifespan_s > 0
                                ? options.lifespan_s
                                : std::max(Quantile(gaps.front().gaps_s, 0.99), 1e-3);
  const double alpha = -std::log(options.reuse_prob) / lifespan_s;
  Series curve{"f, L = " + std::to_string(std::lround(lifespan_s)) + " s", {}};
  for (int i = 0; i <= kCurvePoints; ++i) {
    const double x = x_at(i);
    curve.points.emplace_back(
        x, std::min(std::exp(-alpha * x), options.reuse_prob * std::exp(-options.slope_ratio *
                                                                        alpha * (x - lifespan_s))));
  }
  plot.series.push_back(std::move(curve));
  return plot;
}

std::string FormatGaps(const std::vector<ReuseGaps>& gaps) {
  char line[200];
  std::snprintf(line, sizeof line, "%-12s %9s %9s %9s %9s %9s %9s\n", "reuse gap s", "reuses",
                "P10", "P50", "P90", "P99", "longest");
  std::string text = line;
  for (const ReuseGaps& g : gaps) {
    std::snprintf(line, sizeof line, "%-12s %9zu %9.1f %9.1f %9.1f %9.1f %9.1f\n", g.name.c_str(),
                  g.gaps_s.size(), Quantile(g.gaps_s, 0.1), Quantile(g.gaps_s, 0.5),
                  Quantile(g.gaps_s, 0.9), Quantile(g.gaps_s, 0.99), g.gaps_s.back());
    text += line;
  }
  return text;
}

std::string FormatHits(const std::vector<std::pair<std::string, HitStats>>& stats) {
  char line[200];
  std::snprintf(line, sizeof line, "%-24s %7s %9s %7s %7s   %s\n", "requests that find", "nothing",
                "<= 2 blks", "middle", ">= 75 %", "hits by position in the prompt, %");
  std::string text = line;
  for (const auto& [name, hit] : stats) {
    const auto classes = hit.RequestPctByClass();
    std::snprintf(line, sizeof line, "%-24s %6.1f%% %8.1f%% %6.1f%% %6.1f%%  ", name.c_str(),
                  classes[HitStats::kNone], classes[HitStats::kFew], classes[HitStats::kMiddle],
                  classes[HitStats::kMost]);
    text += line;
    const auto positions = hit.HitPctByPosition();
    for (size_t i = 0; i < HitStats::kBins; i += 2) {
      std::snprintf(line, sizeof line, " %3.0f", (positions[i] + positions[i + 1]) / 2);
      text += line;
    }
    text += "\n";
  }
  return text;
}

}  // namespace kvik::workload
