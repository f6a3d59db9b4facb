// SPDX-License-Identifier: Apache-2.0
// workload/replay_stats.h: what kind of reuse a trace has and a policy catches.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "workload/plot.h"
#include "workload/replay.h"
#include "workload/trace.h"

namespace kvik::workload {

// Of one policy and size: where in prompts the hits lie, and how much requests find. Give Add to
// ReplayOptions::observe.
class HitStats {
 public:
  static constexpr size_t kBins = 20;  // of a prompt's full blocks, from its beginning
  enum RequestClass { kNone, kFew, kMiddle, kMost, kNumClasses };

  // `trace` must outlive the object.
  explicit HitStats(const Trace& trace) : trace_(&trace) {}
  void Add(const RequestOutcome& outcome);

  // Share of the blocks there that were cached, in percent.
  [[nodiscard]] std::array<double, kBins> HitPctByPosition() const;
  // Share of requests without a cached block; with at most 2; with more; with 75 % or more of their
  // full blocks. In percent.
  [[nodiscard]] std::array<double, kNumClasses> RequestPctByClass() const;

 private:
  const Trace* trace_;
  std::array<int64_t, kBins> blocks_{};
  std::array<int64_t, kBins> hits_{};
  std::array<int64_t, kNumClasses> requests_{};
};

// Times between two uses of a block in a trace, for all blocks and by the turn of the request that
// used it first: "all", "turn 1", ..., "turn 6+" (those with any).
struct ReuseGaps {
  std::string name;
  std::vector<double> gaps_s;  // ascending, not empty
};
std::vector<ReuseGaps> ReuseGapsOf(const Trace& trace);
// By linear interpolation. REQUIRES: sorted, not empty.
double Quantile(const std::vector<double>& sorted, double share);

// Share of reuses later than x, of all and by class, and over it the reuse curve f of the policy
// options, with the 99th percentile of all gaps for a lifespan that is 0.
Plot ReuseGapPlot(const Trace& trace, const std::vector<ReuseGaps>& gaps,
                  const kv::PolicyOptions& options);

// Tables for people, lines ended.
std::string FormatGaps(const std::vector<ReuseGaps>& gaps);
std::string FormatHits(const std::vector<std::pair<std::string, HitStats>>& stats);

}  // namespace kvik::workload
