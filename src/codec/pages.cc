// SPDX-License-Identifier: Apache-2.0
// A bf16 key page is a transposed matrix of pairs, [head_dim / 2][block_size_tokens] of 32 bits; a
// value page interleaves two tokens, [block_size_tokens / 2][head_dim][2] (kv/geometry.h). Whole
// blocks take loops over these shapes; slots at the ends of a range are addressed one by one.
#include "codec/pages.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace kvik::codec {
namespace {

// Copies of one page's slots [first_slot, first_slot + n), [n, head_dim] of rows.
void PageToRows(const kv::KvGeometry& g, kv::KvPart part, const std::byte* page_bytes,
                int32_t first_slot, int32_t n, Bf16* rows) {
  const auto* const page = reinterpret_cast<const uint16_t*>(page_bytes);
  const auto dim = static_cast<size_t>(g.head_dim);
  auto* const out = reinterpret_cast<uint16_t*>(rows);
  if (part == kv::KvPart::kKey) {
    const auto slots = static_cast<size_t>(g.block_size_tokens);
    for (size_t pair = 0; pair < dim / 2; ++pair) {
      const uint16_t* const from = page + (pair * slots + static_cast<size_t>(first_slot)) * 2;
      for (size_t t = 0; t < static_cast<size_t>(n); ++t) {
        std::memcpy(out + t * dim + pair * 2, from + t * 2, 4);
      }
    }
    return;
  }
  for (int32_t t = 0; t < n; ++t) {
    const auto slot = static_cast<size_t>(first_slot + t);
    const uint16_t* const from = page + slot / 2 * dim * 2 + slot % 2;
    uint16_t* const to = out + static_cast<size_t>(t) * dim;
    for (size_t d = 0; d < dim; ++d) {
      to[d] = from[d * 2];
    }
  }
}

void RowsToPage(const kv::KvGeometry& g, kv::KvPart part, const Bf16* rows, int32_t first_slot,
                int32_t n, std::byte* page_bytes) {
  auto* const page = reinterpret_cast<uint16_t*>(page_bytes);
  const auto dim = static_cast<size_t>(g.head_dim);
  const auto* const in = reinterpret_cast<const uint16_t*>(rows);
  if (part == kv::KvPart::kKey) {
    const auto slots = static_cast<size_t>(g.block_size_tokens);
    for (size_t pair = 0; pair < dim / 2; ++pair) {
      uint16_t* const to = page + (pair * slots + static_cast<size_t>(first_slot)) * 2;
      for (size_t t = 0; t < static_cast<size_t>(n); ++t) {
        std::memcpy(to + t * 2, in + t * dim + pair * 2, 4);
      }
    }
    return;
  }
  for (int32_t t = 0; t < n; ++t) {
    const auto slot = static_cast<size_t>(first_slot + t);
    uint16_t* const to = page + slot / 2 * dim * 2 + slot % 2;
    const uint16_t* const from = in + static_cast<size_t>(t) * dim;
    for (size_t d = 0; d < dim; ++d) {
      to[d * 2] = from[d];
    }
  }
}

// Calls fn(block, first slot, slots, first row) for each block that `tokens` touch.
template <typename Fn>
void ForEachBlock(const kv::KvGeometry& g, const TokenSpan& tokens, Fn&& fn) {
  KVIK_CHECK(g.dtype == kv::KvDtype::kBf16, "rows are bf16");
  KVIK_CHECK(tokens.first_token >= 0 && tokens.num_tokens >= 0);
  const int32_t end = tokens.first_token + tokens.num_tokens;
  for (int32_t at = tokens.first_token; at < end;) {
    const int32_t slot = at % g.block_size_tokens;
    const int32_t n = std::min(g.block_size_tokens - slot, end - at);
    const auto index = static_cast<size_t>(at / g.block_size_tokens);
    KVIK_CHECK(index < tokens.block_table.size());
    fn(tokens.block_table[index], slot, n, at - tokens.first_token);
    at += n;
  }
}

}  // namespace

void ReadRows(const kv::KvGeometry& geometry, std::span<const std::byte> arena,
              const TokenSpan& tokens, int32_t layer, kv::KvPart part, size_t head_stride,
              Bf16* rows) {
  ForEachBlock(geometry, tokens, [&](BlockId block, int32_t slot, int32_t n, int32_t row) {
    for (int32_t head = 0; head < geometry.num_kv_heads; ++head) {
      PageToRows(geometry, part,
                 arena.data() + geometry.arena_offset_bytes(block, layer, part, head), slot, n,
                 rows + static_cast<size_t>(head) * head_stride +
                     static_cast<size_t>(row) * static_cast<size_t>(geometry.head_dim));
    }
  });
}

void WriteRows(const kv::KvGeometry& geometry, std::span<std::byte> arena, const TokenSpan& tokens,
               int32_t layer, kv::KvPart part, size_t head_stride, const Bf16* rows) {
  ForEachBlock(geometry, tokens, [&](BlockId block, int32_t slot, int32_t n, int32_t row) {
    for (int32_t head = 0; head < geometry.num_kv_heads; ++head) {
      RowsToPage(geometry, part,
                 rows + static_cast<size_t>(head) * head_stride +
                     static_cast<size_t>(row) * static_cast<size_t>(geometry.head_dim),
                 slot, n, arena.data() + geometry.arena_offset_bytes(block, layer, part, head));
    }
  });
}

void ZeroSlotsFrom(const kv::KvGeometry& geometry, std::span<std::byte> arena, BlockId block,
                   int32_t first_slot) {
  KVIK_CHECK(geometry.dtype == kv::KvDtype::kBf16, "rows are bf16");
  for (int32_t layer = 0; layer < geometry.num_layers; ++layer) {
    for (const kv::KvPart part : {kv::KvPart::kKey, kv::KvPart::kValue}) {
      for (int32_t head = 0; head < geometry.num_kv_heads; ++head) {
        auto* const page = reinterpret_cast<uint16_t*>(
            arena.data() + geometry.arena_offset_bytes(block, layer, part, head));
        for (int32_t t = first_slot; t < geometry.block_size_tokens; ++t) {
          for (int32_t d = 0; d < geometry.head_dim; ++d) {
            page[geometry.element_in_page(part, t, d)] = 0;
          }
        }
      }
    }
  }
}

}  // namespace kvik::codec
