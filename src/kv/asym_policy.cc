// SPDX-License-Identifier: Apache-2.0
#include "kv/asym_policy.h"

#include <cmath>

namespace kvik::kv {

AsymPolicy::AsymPolicy(const PolicyOptions& options, const AsymRule& rule)
    : ReuseValuePolicy(options, rule.all_uses), rule_(rule) {}

double AsymPolicy::LnWeight(const Block& block) const {
  return rule_.weighs_cost ? std::log(CostUs(block)) + block.ln_return_factor : 0;
}

void AsymPolicy::Reweigh(BlockId id) {
  LeastValueIndex::Item item = index().item(id);
  item.ln_weight = LnWeight(block(id));
  mutable_index().Erase(id);
  mutable_index().Insert(id, item);
}

void AsymPolicy::AddEvictable(std::span<const BlockId> blocks) {
  for (const BlockId id : blocks) {
    const Block& b = block(id);
    mutable_index().Insert(id, {.cls = static_cast<int32_t>(b.release.cls),
                                .ln_weight = LnWeight(b),
                                .uses = b.uses,
                                .order = next_order_++});
  }
}

void AsymPolicy::RemoveEvictable(BlockId block) { mutable_index().Erase(block); }

std::vector<BlockId> AsymPolicy::PopVictims(size_t count, int64_t now_us) {
  return mutable_index().PopLeast(count, now_us);
}

}  // namespace kvik::kv
