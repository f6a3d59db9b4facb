// SPDX-License-Identifier: Apache-2.0
// kv/block_masks.h: which slots of which blocks attention leaves out.
//
// Compression may drop a token for some heads only: a streaming head keeps the first tokens and the
// latest. Zeros in place of the keys would not do, since a key of zeros still takes its share of
// the softmax. So a dropped slot is masked: attention works as if the token had never been there
// for this head, whatever its bytes are.
//
// A mask is one word for a layer and kv head: bit t is set while slot t is kept. A block of which
// nothing was dropped has no words, and costs neither memory nor time.
//
// Masks belong to the bytes of a block: they follow its id from reader to reader, and KvCache
// clears them when the block is freed. A block with dropped slots does not give what computing it
// would give: whoever drops slots of a block that the index holds must have published it as lossy
// (BlockQuality), or other requests would take it for exact; KvCache::CheckInvariant looks.
//
// Thread-compatible: the engine thread owns them; attention's threads read while it waits for them.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/types.h"
#include "kv/geometry.h"

namespace kvik::kv {

constexpr int32_t kMaxMaskedSlots = 64;  // of a block: bits of a word

class BlockMasks {
 public:
  // For blocks [0, num_blocks). REQUIRES: one layer and kv head or more, blocks of 1 to
  // kMaxMaskedSlots tokens.
  BlockMasks(const KvGeometry& geometry, int32_t num_blocks);

  // Drops slots [first_slot, end_slot) of one layer and kv head, beside those that are dropped
  // already; no slots: nothing changes. REQUIRES: everything lies within the geometry; the tokens
  // have been computed, and none of them is a query of a step to come (a token always sees itself).
  void Drop(BlockId block, int32_t layer, int32_t kv_head, int32_t first_slot, int32_t end_slot);
  // All slots of the block are kept again.
  void Clear(BlockId block);

  // Nothing is dropped in any block.
  [[nodiscard]] bool empty() const { return words_.empty(); }
  // [num_layers][num_kv_heads] words; null: everything is kept. Valid until Clear(block).
  [[nodiscard]] const uint64_t* Of(BlockId block) const;
  // What Of says, by block: [num_blocks], or null while nothing was ever dropped. Valid until the
  // next Drop.
  [[nodiscard]] const uint64_t* const* table() const {
    return table_.empty() ? nullptr : table_.data();
  }

  [[nodiscard]] const KvGeometry& geometry() const { return geometry_; }
  [[nodiscard]] int32_t num_blocks() const { return num_blocks_; }

 private:
  KvGeometry geometry_;
  int32_t num_blocks_;
  std::unordered_map<BlockId, std::vector<uint64_t>> words_;  // of blocks with dropped slots
  std::vector<const uint64_t*> table_;  // [num_blocks], made by the first Drop
};

}  // namespace kvik::kv
