// SPDX-License-Identifier: Apache-2.0
#include "kv/block_pool.h"

#include <array>

#include "base/check.h"

namespace kvik::kv {

BlockPool::BlockPool(int32_t num_blocks) : blocks_(static_cast<size_t>(num_blocks)) {
  KVIK_CHECK(num_blocks >= 1);
  free_.reserve(blocks_.size());
  for (BlockId id = num_blocks - 1; id >= 0; --id) {
    free_.push_back(id);
  }
}

BlockPool::Block& BlockPool::At(BlockId id, const char* operation) {
  KVIK_CHECK(id >= 0 && id < num_total(), "%s of block %d of %d", operation, id, num_total());
  return blocks_[static_cast<size_t>(id)];
}

std::optional<BlockId> BlockPool::AllocateFilling() {
  if (free_.empty()) {
    return std::nullopt;
  }
  const BlockId id = free_.back();
  free_.pop_back();
  At(id, "AllocateFilling") = Block{BlockState::kFilling, 1};
  ++num_filling_;
  return id;
}

void BlockPool::Seal(BlockId id) {
  Block& block = At(id, "Seal");
  KVIK_CHECK(block.state == BlockState::kFilling, "Seal of block %d, which nobody fills", id);
  block.state = BlockState::kReferenced;
  --num_filling_;
  ++num_referenced_;
}

void BlockPool::Ref(BlockId id) {
  Block& block = At(id, "Ref");
  if (block.state == BlockState::kCached) {
    block.state = BlockState::kReferenced;
    --num_cached_;
    ++num_referenced_;
  }
  KVIK_CHECK(block.state == BlockState::kReferenced, "Ref of block %d, which is not sealed", id);
  ++block.refs;
}

bool BlockPool::Unref(BlockId id) {
  Block& block = At(id, "Unref");
  KVIK_CHECK(block.state == BlockState::kReferenced, "Unref of block %d, which nobody holds", id);
  if (--block.refs > 0) {
    return false;
  }
  block.state = BlockState::kCached;
  --num_referenced_;
  ++num_cached_;
  return true;
}

void BlockPool::Free(BlockId id) {
  Block& block = At(id, "Free");
  KVIK_CHECK(block.state == BlockState::kFilling || block.state == BlockState::kCached,
             "Free of block %d, which is free or shared", id);
  --(block.state == BlockState::kFilling ? num_filling_ : num_cached_);
  block = Block{};
  free_.push_back(id);
}

BlockState BlockPool::state(BlockId id) const {
  return const_cast<BlockPool*>(this)->At(id, "state").state;
}

int32_t BlockPool::ref_count(BlockId id) const {
  return const_cast<BlockPool*>(this)->At(id, "ref_count").refs;
}

void BlockPool::CheckInvariant() const {
  std::array<int32_t, 4> counts{};
  for (const Block& block : blocks_) {
    ++counts[static_cast<size_t>(block.state)];
    const bool held = block.state == BlockState::kFilling || block.state == BlockState::kReferenced;
    KVIK_CHECK(held ? block.refs >= 1 : block.refs == 0);
    KVIK_CHECK(block.state != BlockState::kFilling || block.refs == 1);
  }
  KVIK_CHECK(counts[static_cast<size_t>(BlockState::kFree)] == num_free());
  KVIK_CHECK(counts[static_cast<size_t>(BlockState::kFilling)] == num_filling_);
  KVIK_CHECK(counts[static_cast<size_t>(BlockState::kReferenced)] == num_referenced_);
  KVIK_CHECK(counts[static_cast<size_t>(BlockState::kCached)] == num_cached_);
  KVIK_CHECK(num_free() + num_filling_ + num_referenced_ + num_cached_ == num_total());
}

}  // namespace kvik::kv
