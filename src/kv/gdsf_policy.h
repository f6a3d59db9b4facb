// SPDX-License-Identifier: Apache-2.0
// kv/gdsf_policy.h: "gdsf", greedy dual size frequency: uses x time to compute again, above the
// value of what was evicted last, so that old merit fades as others are let go.
#pragma once

#include <algorithm>
#include <vector>

#include "kv/score_policy.h"

namespace kvik::kv {

class GdsfPolicy final : public ScorePolicy {
 public:
  explicit GdsfPolicy(const PolicyOptions& options)
      : ScorePolicy(options), age_at_release_(static_cast<size_t>(options.num_blocks)) {}
  [[nodiscard]] std::string_view name() const override { return "gdsf"; }

 private:
  double Score(const Block& block, BlockId id, int64_t /*now_us*/) override {
    return age_at_release_[static_cast<size_t>(id)] +
           static_cast<double>(block.uses) * block.recompute_us;
  }
  void OnRelease(BlockId id, const Access& /*access*/) override {
    age_at_release_[static_cast<size_t>(id)] = age_;
  }
  void OnEvict(BlockId /*id*/, double score) override { age_ = std::max(age_, score); }

  std::vector<double> age_at_release_;  // [num_blocks]
  double age_ = 0;                      // value of the best block evicted so far
};

}  // namespace kvik::kv
