// SPDX-License-Identifier: Apache-2.0
// kv/lfu_policy.h: "lfu": the block with the fewest uses since it was cached goes first, of equals
// the one in lru's order. With prefix hits, as it is usually built.
#pragma once

#include "kv/score_policy.h"

namespace kvik::kv {

class LfuPolicy final : public ScorePolicy {
 public:
  explicit LfuPolicy(const PolicyOptions& options) : ScorePolicy(options) {}
  [[nodiscard]] std::string_view name() const override { return "lfu"; }
  [[nodiscard]] HitScope hits() const override { return HitScope::kPrefix; }

 private:
  double Score(const Block& block, BlockId /*id*/, int64_t /*now_us*/) override {
    return static_cast<double>(block.uses);
  }
};

}  // namespace kvik::kv
