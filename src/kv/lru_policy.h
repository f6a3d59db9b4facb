// SPDX-License-Identifier: Apache-2.0
// kv/lru_policy.h: "lru", the order of vLLM's free list.
//
// Released blocks join the tail, a sequence's deepest block first; victims come from the head. So
// the earliest release goes first, and within a release the deepest block: a prefix outlives what
// was built on it. Every operation is O(1) a block.
#pragma once

#include <vector>

#include "kv/block_book.h"
#include "kv/eviction_policy.h"

namespace kvik::kv {

class LruPolicy final : public EvictionPolicy {
 public:
  explicit LruPolicy(int32_t num_blocks);

  [[nodiscard]] std::string_view name() const override { return "lru"; }
  void Track(const TrackedBlock& block) override;
  void Touch(std::span<const BlockId> blocks, const Access& access) override;
  void Release(std::span<const BlockId> blocks, const Access& access) override;
  void Forget(BlockId block) override;
  [[nodiscard]] std::vector<BlockId> SelectVictims(size_t count, int64_t now_us) override;
  [[nodiscard]] PolicyStats stats() const override { return blocks_.stats(); }

 private:
  struct Block {
    BlockUse use = BlockUse::kUnknown;
  };
  struct Node {
    BlockId prev = kNoBlock;
    BlockId next = kNoBlock;
  };
  void Unlink(BlockId block);

  BlockBook<Block> blocks_;
  // Doubly linked list of the evictable blocks; the last node is the sentinel.
  std::vector<Node> nodes_;
  BlockId sentinel_;
};

}  // namespace kvik::kv
