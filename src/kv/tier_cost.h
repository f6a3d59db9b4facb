// SPDX-License-Identifier: Apache-2.0
// kv/tier_cost.h: what an evicted block costs when it is wanted again, if a slower memory below the
// cache may hold it: the less of computing it and of fetching it.
//
//   dT = min(recompute(p), queue + bytes / (goodput * compression) + decode)
//
// Policies ask when a block becomes evictable and keep the answer. An estimate that moved by more
// than kMoved since they last asked makes them ask again for all blocks, a few at a time
// (TierWatch). Pure: an estimate, no I/O.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "kv/cost_model.h"

namespace kvik::kv {

class TierCost {
 public:
  virtual ~TierCost() = default;
  // Microseconds to get a block of this content and size back; nothing if no tier would hold it.
  [[nodiscard]] virtual std::optional<double> FetchUs(uint64_t content,
                                                      int32_t num_tokens) const = 0;
  // The same of no block in particular: it moves when queue, goodput or compression do. > 0.
  [[nodiscard]] virtual double TypicalFetchUs(int32_t num_tokens) const = 0;
};

// Numbers that do not change by themselves; holds everything that is evicted.
class FixedTierCost final : public TierCost {
 public:
  struct Numbers {
    double queue_us = 0;         // before a fetch begins
    double bytes_per_s = 1e9;    // of the link, as measured; > 0
    double compression = 1;      // bytes of the cache per byte on the link; > 0
    double bytes_per_token = 1;  // of the cache; > 0
    double decode_us = 0;        // a token's share of making it usable
  };
  explicit FixedTierCost(const Numbers& numbers) : numbers_(numbers) {}

  void Set(const Numbers& numbers) { numbers_ = numbers; }
  [[nodiscard]] std::optional<double> FetchUs(uint64_t /*content*/,
                                              int32_t num_tokens) const override {
    return TypicalFetchUs(num_tokens);
  }
  [[nodiscard]] double TypicalFetchUs(int32_t num_tokens) const override {
    const double bytes = numbers_.bytes_per_token * num_tokens;
    return numbers_.queue_us + 1e6 * bytes / (numbers_.bytes_per_s * numbers_.compression) +
           numbers_.decode_us * num_tokens;
  }

 private:
  Numbers numbers_;
};

// dT of `num_tokens` from `first_pos`. `tier` may be null: then it is computed.
[[nodiscard]] inline double ReturnCostUs(const CostModel& cost, const TierCost* tier,
                                         uint64_t content, int64_t first_pos, int32_t num_tokens) {
  const double computed_us = cost.RecomputeUs(first_pos, num_tokens);
  if (tier == nullptr) {
    return computed_us;
  }
  return std::min(computed_us, tier->FetchUs(content, num_tokens).value_or(computed_us));
}

// When to ask again.
class TierWatch {
 public:
  static constexpr double kMoved = 2;

  TierWatch(const TierCost* tier, int32_t num_tokens)
      : tier_(tier), num_tokens_(num_tokens), asked_us_(TypicalUs()) {}

  // Whether what was kept is out of date; it counts as asked for again from now on.
  [[nodiscard]] bool Moved() {
    const double now_us = TypicalUs();
    if (std::max(now_us, asked_us_) <= kMoved * std::min(now_us, asked_us_)) {
      return false;
    }
    asked_us_ = now_us;
    return true;
  }

 private:
  [[nodiscard]] double TypicalUs() const {
    return tier_ == nullptr ? 1 : tier_->TypicalFetchUs(num_tokens_);
  }

  const TierCost* tier_;
  int32_t num_tokens_;
  double asked_us_;
};

}  // namespace kvik::kv
