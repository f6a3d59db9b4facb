// SPDX-License-Identifier: Apache-2.0
// kv/random_policy.h: "random", uniform over the evictable blocks.
//
// No better at caching than its name: it exists because it tears gaps into the middle of prompts,
// which tests and demonstrations of non-contiguous reuse want. Reproducible: victims depend on the
// seed and the calls only. Every operation is O(1) a block.
#pragma once

#include <vector>

#include "base/rng.h"
#include "kv/eviction_policy.h"

namespace kvik::kv {

class RandomPolicy final : public EvictionPolicy {
 public:
  RandomPolicy(int32_t num_blocks, uint64_t seed);

  [[nodiscard]] std::string_view name() const override { return "random"; }
  void Track(const TrackedBlock& block) override;
  void Touch(std::span<const BlockId> blocks, const Access& access) override;
  void Release(std::span<const BlockId> blocks, const Access& access) override;
  void Forget(BlockId block) override;
  [[nodiscard]] std::vector<BlockId> SelectVictims(size_t count, int64_t now_us) override;
  [[nodiscard]] PolicyStats stats() const override;

 private:
  static constexpr int32_t kUnknown = -2;
  static constexpr int32_t kHeld = -1;
  void Remove(BlockId block, int32_t new_slot);

  std::vector<int32_t> slot_;       // [num_blocks] index into evictable_, kHeld or kUnknown
  std::vector<BlockId> evictable_;  // in no order
  Rng rng_;
  int64_t tracked_ = 0;
  int64_t evicted_ = 0;
};

}  // namespace kvik::kv
