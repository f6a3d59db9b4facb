// SPDX-License-Identifier: Apache-2.0
#include "kv/asym_policy.h"

#include <cmath>

namespace kvik::kv {

AsymPolicy::AsymPolicy(const PolicyOptions& options, const AsymRule& rule)
    : ReuseValuePolicy(options, rule.all_uses), rule_(rule) {}

void AsymPolicy::AddEvictable(std::span<const BlockId> blocks) {
  for (const BlockId id : blocks) {
    const Block& b = block(id);
    double ln_weight = 0;
    if (rule_.weighs_cost) {
      ln_weight = std::log(options().cost.RecomputeUs(b.first_pos, options().block_size_tokens)) +
                  b.ln_return_factor;
    }
    mutable_index().Insert(id, {.cls = static_cast<int32_t>(b.release.cls),
                                .ln_weight = ln_weight,
                                .uses = b.uses,
                                .order = next_order_++});
  }
}

void AsymPolicy::RemoveEvictable(BlockId block) { mutable_index().Erase(block); }

std::vector<BlockId> AsymPolicy::PopVictims(size_t count, int64_t now_us) {
  return mutable_index().PopLeast(count, now_us);
}

}  // namespace kvik::kv
