// SPDX-License-Identifier: Apache-2.0
#include "kv/block_masks.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "base/rng.h"

namespace kvik::kv {
namespace {

KvGeometry Geometry(int32_t block_size_tokens) {
  return {.num_layers = 2,
          .num_kv_heads = 3,
          .head_dim = 64,
          .block_size_tokens = block_size_tokens,
          .dtype = KvDtype::kBf16};
}

TEST(BlockMasks, KeepEverythingAtFirst) {
  const BlockMasks masks(Geometry(16), 4);
  EXPECT_TRUE(masks.empty());
  EXPECT_EQ(masks.Of(3), nullptr);
  EXPECT_EQ(masks.table(), nullptr);
}

TEST(BlockMasks, DropAndClear) {
  BlockMasks masks(Geometry(16), 4);
  masks.Drop(2, 1, 0, 5, 5);
  EXPECT_TRUE(masks.empty());
  masks.Drop(2, 1, 0, 0, 4);
  masks.Drop(2, 1, 0, 15, 16);
  EXPECT_FALSE(masks.empty());
  ASSERT_NE(masks.Of(2), nullptr);
  EXPECT_EQ(masks.Of(2)[3], 0x7FF0U);  // layer 1, kv head 0
  EXPECT_EQ(masks.Of(2)[2], 0xFFFFU);
  EXPECT_EQ(masks.Of(1), nullptr);
  EXPECT_EQ(masks.table()[2], masks.Of(2));
  EXPECT_EQ(masks.table()[1], nullptr);
  masks.Clear(1);
  EXPECT_FALSE(masks.empty());
  masks.Clear(2);
  EXPECT_TRUE(masks.empty());
  EXPECT_EQ(masks.Of(2), nullptr);
  masks.Drop(2, 0, 0, 0, 1);  // what was dropped before Clear is forgotten
  EXPECT_EQ(masks.Of(2)[3], 0xFFFFU);
}

TEST(BlockMasks, HoldWhatWasDroppedFromBlocksOfEverySize) {
  for (const int32_t size : {1, 16, 32, 64}) {
    const KvGeometry geometry = Geometry(size);
    BlockMasks masks(geometry, 8);
    Rng rng(static_cast<uint64_t>(size));
    std::map<BlockId, std::set<std::tuple<int32_t, int32_t, int32_t>>> dropped;
    for (int i = 0; i < 200; ++i) {
      const auto block = static_cast<BlockId>(rng.Below(8));
      if (rng.Below(8) == 0) {
        masks.Clear(block);
        dropped.erase(block);
        continue;
      }
      const auto layer = static_cast<int32_t>(rng.Below(2));
      const auto head = static_cast<int32_t>(rng.Below(3));
      const auto first = static_cast<int32_t>(rng.Range(0, size));
      const auto end = static_cast<int32_t>(rng.Range(first, size));
      masks.Drop(block, layer, head, first, end);
      for (int32_t slot = first; slot < end; ++slot) {
        dropped[block].emplace(layer, head, slot);
      }
      for (BlockId b = 0; b < 8; ++b) {
        const uint64_t* words = masks.Of(b);
        for (int32_t cell = 0; cell < 6 * size; ++cell) {
          const int32_t word = cell / size;
          const int32_t slot = cell % size;
          const bool kept = words == nullptr || (words[word] >> slot & 1) != 0;
          ASSERT_NE(kept, dropped[b].contains({word / 3, word % 3, slot}))
              << "block size " << size << " block " << b << " cell " << cell;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvik::kv
