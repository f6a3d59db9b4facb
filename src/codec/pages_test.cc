// SPDX-License-Identifier: Apache-2.0
#include "codec/pages.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/rng.h"

namespace kvik::codec {
namespace {

uint16_t At(const kv::KvGeometry& g, const std::vector<std::byte>& arena, BlockId block,
            int32_t layer, kv::KvPart part, int32_t head, int32_t slot, int32_t d) {
  uint16_t bits = 0;
  std::memcpy(&bits,
              arena.data() + g.arena_offset_bytes(block, layer, part, head) +
                  g.element_in_page(part, slot, d) * 2,
              2);
  return bits;
}

TEST(Pages, RowsAreTheSlotsThatTheGeometryNamesAndNoOthersAreTouched) {
  Rng rng(5);
  for (int round = 0; round < 60; ++round) {
    kv::KvGeometry g;
    g.num_layers = 3;
    g.num_kv_heads = 1 + static_cast<int32_t>(rng.Below(3));
    g.head_dim = 2 * static_cast<int32_t>(1 + rng.Below(64));
    g.block_size_tokens = 16 << rng.Below(3);
    const int32_t blocks = 5;
    std::vector<std::byte> arena(g.bytes_per_block() * static_cast<size_t>(blocks));
    for (std::byte& byte : arena) {
      byte = static_cast<std::byte>(rng.Below(256));
    }
    const std::vector<BlockId> table = {3, 0, 4, 1};
    TokenSpan tokens;
    tokens.block_table = table;
    const int32_t capacity = 4 * g.block_size_tokens;
    tokens.first_token = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(capacity)));
    tokens.num_tokens =
        static_cast<int32_t>(rng.Below(static_cast<uint64_t>(capacity - tokens.first_token) + 1));
    const auto layer = static_cast<int32_t>(rng.Below(3));
    const kv::KvPart part = rng.Below(2) == 0 ? kv::KvPart::kKey : kv::KvPart::kValue;
    const auto dim = static_cast<size_t>(g.head_dim);
    const size_t stride = static_cast<size_t>(tokens.num_tokens) * dim + 3;
    std::vector<Bf16> rows(stride * static_cast<size_t>(g.num_kv_heads) + 1, Bf16{0xABCD});
    ReadRows(g, arena, tokens, layer, part, stride, rows.data());
    for (int32_t head = 0; head < g.num_kv_heads; ++head) {
      for (int32_t t = 0; t < tokens.num_tokens; ++t) {
        const int32_t position = tokens.first_token + t;
        for (int32_t d = 0; d < g.head_dim; ++d) {
          ASSERT_EQ(rows[static_cast<size_t>(head) * stride + static_cast<size_t>(t) * dim +
                         static_cast<size_t>(d)]
                        .bits,
                    At(g, arena, table[static_cast<size_t>(position / g.block_size_tokens)], layer,
                       part, head, position % g.block_size_tokens, d));
        }
      }
      ASSERT_EQ(rows[static_cast<size_t>(head + 1) * stride - 3].bits, 0xABCD);
    }
    // Writing the same rows back changes nothing; writing others changes only their slots.
    std::vector<std::byte> copy = arena;
    WriteRows(g, copy, tokens, layer, part, stride, rows.data());
    ASSERT_EQ(copy, arena);
    for (Bf16& value : rows) {
      value.bits ^= 0xFFFF;
    }
    WriteRows(g, copy, tokens, layer, part, stride, rows.data());
    size_t changed = 0;
    for (size_t i = 0; i < arena.size(); ++i) {
      changed += copy[i] != arena[i] ? 1U : 0U;
    }
    ASSERT_EQ(changed, static_cast<size_t>(tokens.num_tokens) * dim * 2 *
                           static_cast<size_t>(g.num_kv_heads));
  }
}

TEST(Pages, UnusedSlotsBecomeZero) {
  kv::KvGeometry g;
  g.num_layers = 2;
  g.num_kv_heads = 2;
  g.head_dim = 8;
  std::vector<std::byte> arena(g.bytes_per_block() * 2, std::byte{0xFF});
  ZeroSlotsFrom(g, arena, 1, 5);
  for (const kv::KvPart part : {kv::KvPart::kKey, kv::KvPart::kValue}) {
    for (int32_t slot = 0; slot < 16; ++slot) {
      EXPECT_EQ(At(g, arena, 1, 1, part, 1, slot, 7), slot < 5 ? 0xFFFF : 0);
      EXPECT_EQ(At(g, arena, 0, 1, part, 1, slot, 7), 0xFFFF);
    }
  }
}

}  // namespace
}  // namespace kvik::codec
