// SPDX-License-Identifier: Apache-2.0
#include "kv/block_masks.h"

#include "base/check.h"

namespace kvik::kv {
namespace {

// Bits [0, n).
uint64_t LowBits(int32_t n) { return n >= kMaxMaskedSlots ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

}  // namespace

BlockMasks::BlockMasks(const KvGeometry& geometry, int32_t num_blocks)
    : geometry_(geometry), num_blocks_(num_blocks) {
  KVIK_CHECK(num_blocks >= 0 && geometry.num_layers >= 1 && geometry.num_kv_heads >= 1);
  KVIK_CHECK(geometry.block_size_tokens >= 1 && geometry.block_size_tokens <= kMaxMaskedSlots);
}

void BlockMasks::Drop(BlockId block, int32_t layer, int32_t kv_head, int32_t first_slot,
                      int32_t end_slot) {
  KVIK_CHECK(block >= 0 && block < num_blocks_, "block %d of %d", block, num_blocks_);
  KVIK_CHECK(layer >= 0 && layer < geometry_.num_layers && kv_head >= 0 &&
                 kv_head < geometry_.num_kv_heads,
             "layer %d, kv head %d", layer, kv_head);
  KVIK_CHECK(first_slot >= 0 && first_slot <= end_slot && end_slot <= geometry_.block_size_tokens,
             "slots [%d, %d)", first_slot, end_slot);
  if (first_slot == end_slot) {
    return;
  }
  std::vector<uint64_t>& words = words_[block];
  if (words.empty()) {
    words.assign(
        static_cast<size_t>(geometry_.num_layers) * static_cast<size_t>(geometry_.num_kv_heads),
        LowBits(geometry_.block_size_tokens));
    table_.resize(static_cast<size_t>(num_blocks_), nullptr);
    table_[static_cast<size_t>(block)] = words.data();
  }
  const size_t head = static_cast<size_t>(layer) * static_cast<size_t>(geometry_.num_kv_heads) +
                      static_cast<size_t>(kv_head);
  words[head] &= ~(LowBits(end_slot) & ~LowBits(first_slot));
}

void BlockMasks::Clear(BlockId block) {
  KVIK_CHECK(block >= 0 && block < num_blocks_, "block %d of %d", block, num_blocks_);
  if (words_.erase(block) > 0) {
    table_[static_cast<size_t>(block)] = nullptr;
  }
}

const uint64_t* BlockMasks::Of(BlockId block) const {
  KVIK_CHECK(block >= 0 && block < num_blocks_, "block %d of %d", block, num_blocks_);
  return table_.empty() ? nullptr : table_[static_cast<size_t>(block)];
}

}  // namespace kvik::kv
