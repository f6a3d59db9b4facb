// SPDX-License-Identifier: Apache-2.0
// kv/fifo_policy.h: "fifo": the block cached first goes first, whatever happened to it since. What
// one request brought goes deepest first, as everywhere.
#pragma once

#include <vector>

#include "kv/score_policy.h"

namespace kvik::kv {

class FifoPolicy final : public ScorePolicy {
 public:
  explicit FifoPolicy(const PolicyOptions& options)
      : ScorePolicy(options), born_(static_cast<size_t>(options.num_blocks)) {}
  [[nodiscard]] std::string_view name() const override { return "fifo"; }
  [[nodiscard]] HitScope hits() const override { return HitScope::kPrefix; }

 private:
  double Score(const Block& /*block*/, BlockId id, int64_t /*now_us*/) override {
    return static_cast<double>(born_[static_cast<size_t>(id)]);
  }
  void OnTrack(BlockId id) override { born_[static_cast<size_t>(id)] = 0; }
  void OnRelease(BlockId id, const Access& /*access*/) override {
    uint64_t& born = born_[static_cast<size_t>(id)];
    if (born == 0) {
      born = block(id).release_order + 1;
    }
  }

  std::vector<uint64_t> born_;  // [num_blocks] 1 + order of the first release; 0: none yet
};

}  // namespace kvik::kv
