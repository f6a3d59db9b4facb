// SPDX-License-Identifier: Apache-2.0
#include "base/huge_page_arena.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace kvik {
namespace {

TEST(HugePageArena, PiecesAreZeroedAlignedAndDoNotOverlap) {
  Rng rng(1);
  HugePageArena arena;
  std::vector<std::span<std::byte>> pieces;
  for (int i = 0; i < 200; ++i) {
    // Small ones, some as large as a chunk or larger, and empty ones.
    const size_t size = i % 40 == 7 ? (size_t{1} << 20) * (1 + rng.Below(40)) : rng.Below(300000);
    const auto piece = arena.Allocate(size);
    ASSERT_TRUE(piece.has_value());
    ASSERT_EQ(piece->size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(piece->data()) % 64, 0U);
    for (size_t at = 0; at < size; at += 4096) {
      ASSERT_EQ((*piece)[at], std::byte{0}) << "piece " << i << " at " << at;
    }
    std::fill(piece->begin(), piece->end(), static_cast<std::byte>(i + 1));
    pieces.push_back(*piece);
  }
  HugePageArena moved = std::move(arena);
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (size_t at = 0; at < pieces[i].size(); at += 61) {
      ASSERT_EQ(pieces[i][at], static_cast<std::byte>(i + 1)) << "piece " << i << " at " << at;
    }
  }
}

TEST(HugePageArena, RefusesWhatNoMachineHas) {
  HugePageArena arena;
  const auto piece = arena.Allocate(SIZE_MAX / 2);
  ASSERT_FALSE(piece.has_value());
  EXPECT_EQ(piece.error().code, ErrorCode::kExhausted);
  EXPECT_TRUE(arena.Allocate(100).has_value());
}

}  // namespace
}  // namespace kvik
