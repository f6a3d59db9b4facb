// SPDX-License-Identifier: Apache-2.0
// kv/geometry.h: where the bytes of a KV block lie.
//
// A block holds K and V of `block_size_tokens` consecutive tokens for every layer and kv head. It
// is one contiguous piece of the arena, so it can be moved, hashed or freed as a whole:
//
//   arena  [num_blocks] blocks
//   block  [num_layers][2: K, V][num_kv_heads] pages
//   page   bf16: K [head_dim/2][block_size_tokens][2]   V [block_size_tokens/2][head_dim][2]
//          f32:  K [head_dim][block_size_tokens]        V [block_size_tokens][head_dim]
//
// The bf16 pages interleave pairs along the summed axis (head_dim for scores, tokens for the
// weighted sum of values), which is what a bf16 dot-product instruction reads; the same bytes
// widen to two float32 vectors with a shift and a mask where there is no such instruction.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace kvik::kv {

enum class KvDtype { kBf16, kF32 };
enum class KvPart { kKey = 0, kValue = 1 };

constexpr size_t KvDtypeBytes(KvDtype dtype) { return dtype == KvDtype::kBf16 ? 2 : 4; }

struct KvGeometry {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;            // even
  int32_t block_size_tokens = 16;  // 16, 32 or 64
  KvDtype dtype = KvDtype::kBf16;

  [[nodiscard]] constexpr size_t bytes_per_page() const {
    return static_cast<size_t>(block_size_tokens) * static_cast<size_t>(head_dim) *
           KvDtypeBytes(dtype);
  }
  [[nodiscard]] constexpr size_t bytes_per_block() const {
    return static_cast<size_t>(num_layers) * 2 * static_cast<size_t>(num_kv_heads) *
           bytes_per_page();
  }
  [[nodiscard]] constexpr size_t bytes_per_token() const {
    return bytes_per_block() / static_cast<size_t>(block_size_tokens);
  }
  // Byte offset of a page within its block.
  [[nodiscard]] constexpr size_t page_offset_bytes(int layer, KvPart part, int kv_head) const {
    return ((static_cast<size_t>(layer) * 2 + static_cast<size_t>(part)) *
                static_cast<size_t>(num_kv_heads) +
            static_cast<size_t>(kv_head)) *
           bytes_per_page();
  }
  // Byte offset of a page within the arena.
  [[nodiscard]] constexpr size_t arena_offset_bytes(BlockId block, int layer, KvPart part,
                                                    int kv_head) const {
    return static_cast<size_t>(block) * bytes_per_block() + page_offset_bytes(layer, part, kv_head);
  }
  // Index (in elements) of one value within its page; t in [0, block_size_tokens), d in
  // [0, head_dim).
  [[nodiscard]] constexpr size_t element_in_page(KvPart part, int t, int d) const {
    const auto bs = static_cast<size_t>(block_size_tokens);
    const auto hd = static_cast<size_t>(head_dim);
    const auto ts = static_cast<size_t>(t);
    const auto ds = static_cast<size_t>(d);
    if (dtype == KvDtype::kF32) {
      return part == KvPart::kKey ? ds * bs + ts : ts * hd + ds;
    }
    return part == KvPart::kKey ? (ds / 2 * bs + ts) * 2 + ds % 2 : (ts / 2 * hd + ds) * 2 + ts % 2;
  }
  friend constexpr bool operator==(const KvGeometry&, const KvGeometry&) = default;
};

}  // namespace kvik::kv
