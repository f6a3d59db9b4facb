// SPDX-License-Identifier: Apache-2.0
#include "kv/random_policy.h"

#include "base/check.h"

namespace kvik::kv {

RandomPolicy::RandomPolicy(int32_t num_blocks, uint64_t seed)
    : slot_(static_cast<size_t>(num_blocks), kUnknown), rng_(seed) {}

void RandomPolicy::Track(const TrackedBlock& block) {
  int32_t& slot = slot_.at(static_cast<size_t>(block.block));
  KVIK_CHECK(slot == kUnknown, "block %d is tracked already", block.block);
  slot = kHeld;
  ++tracked_;
}

void RandomPolicy::Remove(BlockId block, int32_t new_slot) {
  int32_t& slot = slot_.at(static_cast<size_t>(block));
  KVIK_CHECK(slot >= 0, "block %d is not evictable", block);
  const BlockId last = evictable_.back();
  evictable_[static_cast<size_t>(slot)] = last;
  slot_[static_cast<size_t>(last)] = slot;
  evictable_.pop_back();
  slot = new_slot;
}

void RandomPolicy::Touch(std::span<const BlockId> blocks, const Access& /*access*/) {
  for (const BlockId block : blocks) {
    Remove(block, kHeld);
  }
}

void RandomPolicy::Release(std::span<const BlockId> blocks, const Access& /*access*/) {
  for (const BlockId block : blocks) {
    int32_t& slot = slot_.at(static_cast<size_t>(block));
    KVIK_CHECK(slot == kHeld, "block %d is not held", block);
    slot = static_cast<int32_t>(evictable_.size());
    evictable_.push_back(block);
  }
}

void RandomPolicy::Forget(BlockId block) {
  int32_t& slot = slot_.at(static_cast<size_t>(block));
  KVIK_CHECK(slot != kUnknown, "block %d is not tracked", block);
  if (slot == kHeld) {
    slot = kUnknown;
  } else {
    Remove(block, kUnknown);
  }
  --tracked_;
}

std::vector<BlockId> RandomPolicy::SelectVictims(size_t count, int64_t /*now_us*/) {
  KVIK_CHECK(count <= evictable_.size());
  std::vector<BlockId> victims;
  victims.reserve(count);
  while (victims.size() < count) {
    victims.push_back(evictable_[rng_.Below(evictable_.size())]);
    Forget(victims.back());
  }
  evicted_ += static_cast<int64_t>(count);
  return victims;
}

PolicyStats RandomPolicy::stats() const {
  return PolicyStats{tracked_, static_cast<int64_t>(evictable_.size()), evicted_};
}

}  // namespace kvik::kv
