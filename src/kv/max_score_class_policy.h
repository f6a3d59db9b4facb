// SPDX-License-Identifier: Apache-2.0
// kv/max_score_class_policy.h: "max-score-class": the least likely to be used again goes first, by
// an exponential fit of each class of requests.
//
// A block belongs to the class of the request that used it last: its turn in the session. Of each
// class two numbers are learned while running: the share of blocks that are used again, and the
// mean time until then. Equally likely blocks go deepest first. Costs play no part.
#pragma once

#include <array>
#include <vector>

#include "kv/ghost_map.h"
#include "kv/score_policy.h"

namespace kvik::kv {

class MaxScoreClassPolicy final : public ScorePolicy {
 public:
  explicit MaxScoreClassPolicy(const PolicyOptions& options);
  [[nodiscard]] std::string_view name() const override { return "max-score-class"; }
  [[nodiscard]] HitScope hits() const override { return HitScope::kPrefix; }
  void Missed(std::span<const uint64_t> contents, const Access& access) override;

 private:
  static constexpr size_t kClasses = 7;  // turn unknown, 1, ..., 5, 6 and later
  struct Class {
    double released = 0;  // blocks
    double reused = 0;    // of which were used again
    double gaps_s = 0;    // sum of the times until then
  };
  struct Released {
    size_t of_class = 0;
    int64_t at_us = 0;
  };
  double Score(const Block& block, BlockId id, int64_t now_us) override;
  void OnTrack(BlockId id) override { class_[static_cast<size_t>(id)] = 0; }
  void OnHit(BlockId id, const Access& access) override;
  void OnRelease(BlockId id, const Access& access) override;
  void OnEvict(BlockId id, double score) override;
  void Reused(const Released& before, int64_t now_us);

  std::array<Class, kClasses> classes_;
  std::vector<uint8_t> class_;  // [num_blocks] of the last release
  GhostMap<Released> ghosts_;   // evicted blocks
};

}  // namespace kvik::kv
