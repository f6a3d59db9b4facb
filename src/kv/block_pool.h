// SPDX-License-Identifier: Apache-2.0
// kv/block_pool.h: who holds which block.
//
// A block is in exactly one state:
//
//   free        nobody's; its bytes mean nothing
//   filling     one sequence writes it; not shared
//   referenced  sealed (its bytes never change again) and held by one or more sequences
//   cached      sealed and held by nobody; readable through the prefix index until evicted
//
//   free -AllocateFilling-> filling -Seal-> referenced -Unref (last)-> cached -Ref-> referenced
//   filling -Free-> free            cached -Free-> free
//
// Always: free + filling + referenced + cached == total. Ids only; the bytes live in an arena the
// pool does not know. Thread-compatible: the engine thread owns the pool.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/types.h"

namespace kvik::kv {

enum class BlockState : uint8_t { kFree, kFilling, kReferenced, kCached };

class BlockPool {
 public:
  // All blocks are free. REQUIRES: num_blocks >= 1.
  explicit BlockPool(int32_t num_blocks);

  // free -> filling. The block freed last is handed out first (its bytes are the warmest). Nothing
  // when no block is free. O(1).
  [[nodiscard]] std::optional<BlockId> AllocateFilling();
  // filling -> referenced, with one reference. REQUIRES: filling.
  void Seal(BlockId id);
  // Adds a reference. REQUIRES: referenced or cached.
  void Ref(BlockId id);
  // Drops one; true when it was the last and the block is now cached. REQUIRES: referenced.
  bool Unref(BlockId id);
  // filling or cached -> free. REQUIRES: one of these.
  void Free(BlockId id);

  [[nodiscard]] BlockState state(BlockId id) const;
  [[nodiscard]] int32_t ref_count(BlockId id) const;

  [[nodiscard]] int32_t num_total() const { return static_cast<int32_t>(blocks_.size()); }
  [[nodiscard]] int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  [[nodiscard]] int32_t num_filling() const { return num_filling_; }
  [[nodiscard]] int32_t num_referenced() const { return num_referenced_; }
  [[nodiscard]] int32_t num_cached() const { return num_cached_; }

  // Recounts every block against the counters and aborts on a difference. O(total).
  void CheckInvariant() const;

 private:
  struct Block {
    BlockState state = BlockState::kFree;
    int32_t refs = 0;
  };
  Block& At(BlockId id, const char* operation);

  std::vector<Block> blocks_;  // [total]
  std::vector<BlockId> free_;  // stack
  int32_t num_filling_ = 0;
  int32_t num_referenced_ = 0;
  int32_t num_cached_ = 0;
};

}  // namespace kvik::kv
