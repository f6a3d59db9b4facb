// SPDX-License-Identifier: Apache-2.0
// kv/reuse_hazard.h: how likely content of a class is wanted again, given how long nobody has.
//
// Per class a hazard over log-spaced bins of age (time since the last use): returns seen at that
// age over time spent at that age, both counted for contents resident or not, both fading with
// time. What is still waiting counts as waiting up to its age and not further: nothing is assumed
// about the future.
//
// A class with little evidence leans on its parent, first as a whole (its hazards are the parent's
// times one factor, seen returns over expected ones, as if kPriorReturns had been as expected),
// then bin by bin (as if kPriorUses had waited through the bin at that rate). A root leans on its
// own younger bins (hazard ~ 1 / age, kRootPriorUses).
//
// From the hazards comes the gain of keeping a block that has waited for `age`:
//
//   G(age) = sum over later bins j of S_j h_j exp(-(age_j - age) / H)
//
// S_j = chance to wait that long, h_j = chance to return then, H = how far ahead a kept block
// matters (about the cache's own turnover time). Thread-compatible.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvik::kv {

class ReuseHazard {
 public:
  static constexpr int kNumBins = 34;
  static constexpr int kNoParent = -1;
  static constexpr double kPriorReturns = 5;
  static constexpr double kPriorUses = 20;
  static constexpr double kRootPriorUses = 5;
  // What was seen this long ago weighs 1/e, unless fewer than so many requests have come since:
  // where they are rare, forgetting by the clock would leave too few to tell classes apart.
  static constexpr double kFadeS = 3000;
  static constexpr double kFadeRequests = 1000;

  struct Node {
    int parent = kNoParent;     // an earlier node
    double prior_factor = 1.0;  // its hazards are expected to be this many times the parent's
  };
  explicit ReuseHazard(std::vector<Node> nodes);

  // Ages [BinStartS(bin), BinStartS(bin + 1)); the last bin is open.
  [[nodiscard]] static double BinStartS(int bin) { return Edges()[static_cast<size_t>(bin)]; }
  // The bin of `age_s`, searched upward from `from_bin`. O(1) for ages that only grow.
  [[nodiscard]] static int BinOf(double age_s, int from_bin = 0) {
    while (from_bin + 1 < kNumBins && age_s >= BinStartS(from_bin + 1)) {
      ++from_bin;
    }
    return from_bin;
  }

  // What is seen from now on weighs more than what was seen. Time never goes back.
  void AdvanceTime(int64_t now_us);
  // A request let go of its content.
  void CountRequest();
  // `weight` of content of this class (and so of its ancestors) waited from one age to another.
  void AddWaiting(int node, double from_age_s, double to_age_s, double weight);
  // ... and then was used again.
  void AddReturn(int node, double age_s, double weight);

  // Makes the node's hazards and gains (and the hazards of its ancestors that are out of date)
  // follow the counts. Some microseconds.
  void Rebuild(int node, double horizon_s);
  // When the node was rebuilt last; < 0: never.
  [[nodiscard]] int64_t rebuilt_us(int node) const { return At(node).rebuilt_us; }

  // Chance of a return a second. As of the last Rebuild.
  [[nodiscard]] double Rate(int node, int bin) const {
    return At(node).rate[static_cast<size_t>(bin)];
  }
  // G, as of the last Rebuild. REQUIRES: bin = BinOf(age_s).
  [[nodiscard]] double Gain(int node, double age_s, int bin) const {
    const Tables& t = At(node);
    const auto i = static_cast<size_t>(bin);
    const double part = (age_s - Edges()[i]) * inverse_width_[i];
    return t.gain[i] + (part < 1 ? part : 1) * (t.gain[i + 1] - t.gain[i]);
  }

  // The counts, for saving and restoring. Scaled so that what is seen now weighs 1.
  struct Counts {
    std::array<double, kNumBins> returns{};
    std::array<double, kNumBins> waiting_s{};
  };
  [[nodiscard]] int num_nodes() const { return static_cast<int>(tables_.size()); }
  [[nodiscard]] Counts counts(int node) const;
  // REQUIRES: finite, >= 0. For the node alone: its ancestors have counts of their own.
  void set_counts(int node, const Counts& counts);

 private:
  struct Tables {
    Node node;
    int64_t rebuilt_us = -1;
    int64_t rates_us = -1;
    std::array<double, kNumBins> returns{};    // times weight_
    std::array<double, kNumBins> waiting_s{};  // times weight_
    std::array<double, kNumBins> rate{};
    std::array<double, kNumBins + 1> gain{};
  };
  static const std::array<double, kNumBins + 1>& Edges();
  [[nodiscard]] const Tables& At(int node) const { return tables_[static_cast<size_t>(node)]; }
  [[nodiscard]] Tables& At(int node) { return tables_[static_cast<size_t>(node)]; }
  void RebuildRates(int node);

  std::vector<Tables> tables_;
  std::array<double, kNumBins> inverse_width_{};
  int64_t now_us_ = -1;  // < 0: nobody said
  double weight_ = 1;    // of what is seen now: older counts fade by its growth
  // What the clock and the requests allow to be forgotten, as exponents; the lesser happens. An
  // idle day, or a busy minute, is not saved up for later: both are at most 1.
  double due_by_time_ = 0;
  double due_by_requests_ = 0;
};

}  // namespace kvik::kv
