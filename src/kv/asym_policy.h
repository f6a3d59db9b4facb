// SPDX-License-Identifier: Apache-2.0
// kv/asym_policy.h: "asym": the block goes whose loss costs least in expectation.
//
// A block is worth f(age) dT: how likely it is used again (kv/reuse_curve.h) times what computing
// it again costs, which grows with its position. So both ends of a conversation stay, the shared
// beginning because it is used often, the end because it is dear, and hits have gaps. dT and the
// factor for a tool call are those of the moment the block became evictable. Of equal values the
// one that lru would take goes first.
//
// "asym-last" counts only the last use; "max-score" leaves the cost out, and without cost deep
// blocks go first and no gaps come of it, so it uses prefixes only.
#pragma once

#include <string_view>
#include <vector>

#include "kv/reuse_value_policy.h"

namespace kvik::kv {

struct AsymRule {
  std::string_view name;
  bool all_uses = true;     // earlier uses count too, decayed
  bool weighs_cost = true;  // dT and tool calls
  HitScope hits = HitScope::kGaps;
};

constexpr AsymRule kAsym{.name = "asym"};
constexpr AsymRule kAsymLast{.name = "asym-last", .all_uses = false};
constexpr AsymRule kMaxScore{.name = "max-score", .weighs_cost = false, .hits = HitScope::kPrefix};

class AsymPolicy final : public ReuseValuePolicy {
 public:
  AsymPolicy(const PolicyOptions& options, const AsymRule& rule);

  [[nodiscard]] std::string_view name() const override { return rule_.name; }
  [[nodiscard]] HitScope hits() const override { return rule_.hits; }

 private:
  void AddEvictable(std::span<const BlockId> blocks) override;
  void RemoveEvictable(BlockId block) override;
  std::vector<BlockId> PopVictims(size_t count, int64_t now_us) override;
  void Reweigh(BlockId block) override;
  [[nodiscard]] double LnWeight(const Block& block) const;

  AsymRule rule_;
  uint64_t next_order_ = 0;
};

}  // namespace kvik::kv
