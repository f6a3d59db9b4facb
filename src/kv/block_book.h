// SPDX-License-Identifier: Apache-2.0
// kv/block_book.h: what a policy keeps of each block, and which blocks it may choose.
//
// Every policy hears of blocks that are published, held, let go of and gone, and must be told when
// the order of that makes no sense; here it is checked and counted once. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "kv/eviction_policy.h"

namespace kvik::kv {

enum class BlockUse : uint8_t { kUnknown, kHeld, kEvictable };

// `Block` is a struct of the policy with a member `BlockUse use`, which only the book changes.
template <typename Block>
class BlockBook {
 public:
  explicit BlockBook(int32_t num_blocks) : blocks_(static_cast<size_t>(num_blocks)) {}

  [[nodiscard]] size_t size() const { return blocks_.size(); }
  [[nodiscard]] const PolicyStats& stats() const { return stats_; }
  // REQUIRES: tracked.
  [[nodiscard]] Block& At(BlockId id) {
    Block& block = Any(id);
    KVIK_CHECK(block.use != BlockUse::kUnknown, "block %d is not tracked", id);
    return block;
  }
  // REQUIRES: an id of the book.
  [[nodiscard]] const Block& operator[](BlockId id) const {
    return blocks_[static_cast<size_t>(id)];
  }

  // Somebody holds the block. REQUIRES: not tracked.
  Block& Track(BlockId id, const Block& facts) {
    Block& block = Move(id, BlockUse::kUnknown, BlockUse::kUnknown);
    block = facts;
    block.use = BlockUse::kHeld;
    ++stats_.tracked;
    return block;
  }
  // Held again. REQUIRES: evictable.
  Block& Hold(BlockId id) {
    --stats_.evictable;
    return Move(id, BlockUse::kEvictable, BlockUse::kHeld);
  }
  // Nobody holds it any more. REQUIRES: held.
  Block& Free(BlockId id) {
    ++stats_.evictable;
    return Move(id, BlockUse::kHeld, BlockUse::kEvictable);
  }
  // Out of the cache. REQUIRES: tracked.
  void Leave(BlockId id) {
    Block& block = At(id);
    stats_.evictable -= block.use == BlockUse::kEvictable ? 1 : 0;
    --stats_.tracked;
    block.use = BlockUse::kUnknown;
  }
  // So many were chosen as victims; each leaves by itself.
  void CountVictims(size_t count) { stats_.evicted += static_cast<int64_t>(count); }

 private:
  Block& Any(BlockId id) {
    KVIK_CHECK(id >= 0 && static_cast<size_t>(id) < blocks_.size());
    return blocks_[static_cast<size_t>(id)];
  }
  Block& Move(BlockId id, BlockUse from, BlockUse to) {
    Block& block = Any(id);
    KVIK_CHECK(block.use == from, "block %d is in the wrong state for the policy", id);
    block.use = to;
    return block;
  }

  std::vector<Block> blocks_;
  PolicyStats stats_;
};

}  // namespace kvik::kv
