// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/float16.h"
#include "base/rng.h"
#include "codec/testing/made_transform.h"

namespace kvik::codec {
namespace {

using testing::MadeModel;
using testing::MadeTile;
using testing::MadeTransform;

struct Group {
  int32_t rows;
  int32_t group;
  int32_t anchors;
};

// By the definition, from the bytes that a decoder has.
TEST(Delta, RowsAreDifferencesToTheDecodedAnchorOfTheirGroup) {
  constexpr int32_t kHeads = 3;
  constexpr size_t kDim = 100;
  for (const Group& shape : {Group{0, 10, 0}, Group{1, 10, 1}, Group{2, 10, 1}, Group{3, 10, 1},
                             Group{10, 10, 1}, Group{11, 10, 2}, Group{37, 10, 4}, Group{3, 2, 2},
                             Group{16, 2, 8}, Group{17, 16, 2}, Group{40, 65536, 1}}) {
    MadeTransform made("delta(group=" + std::to_string(shape.group) + ")",
                       MadeModel(1, kHeads, kDim), 1);
    made.SetRows(100, shape.rows);
    Rng rng(6);
    const Tile tile = MadeTile(rng, kHeads, shape.rows, kDim);
    std::vector<std::byte> side;
    const auto forward = made.Forward(Isa::kScalar, tile, side);
    ASSERT_TRUE(forward);
    ASSERT_EQ(forward->rows, shape.rows - shape.anchors);
    ASSERT_EQ(side.size(), static_cast<size_t>(kHeads * shape.anchors) * (2 + kDim));
    ByteReader reader(side);
    for (int32_t head = 0; head < kHeads; ++head) {
      size_t out = 0;
      std::vector<float> anchor(kDim);
      for (int32_t row = 0; row < shape.rows; ++row) {
        const auto values = tile.Head(head).subspan(static_cast<size_t>(row) * kDim, kDim);
        if (row % shape.group == 0) {
          const float step = ToFloat(Bf16{*reader.U16()});
          float largest = 0;
          for (size_t c = 0; c < kDim; ++c) {
            const int code = *reader.U8() - 128;
            anchor[c] = static_cast<float>(code) * step;
            largest = std::max(largest, std::abs(values[c]));
            ASSERT_NEAR(anchor[c], values[c], step * 0.5001F);
          }
          ASSERT_LE(largest, 127 * step);
          ASSERT_GE(largest, 126 * step);
          continue;
        }
        for (size_t c = 0; c < kDim; ++c) {
          ASSERT_EQ(forward->Head(head)[out * kDim + c], values[c] - anchor[c]);
        }
        ++out;
      }
    }
    // The positions that are left are those of the differences.
    std::vector<int32_t> positions = made.positions;
    made.transform->DropPositions(positions);
    std::vector<int32_t> expected;
    for (int32_t row = 0; row < shape.rows; ++row) {
      if (row % shape.group != 0) {
        expected.push_back(100 + row);
      }
    }
    EXPECT_EQ(positions, expected);
  }
}

TEST(Delta, TokensThatAreAlikeLeaveSmallDifferences) {
  MadeTransform made("delta", MadeModel(1, 1, 64), 1);
  made.SetRows(0, 10);
  Rng rng(6);
  Tile tile = MadeTile(rng, 1, 10, 64);
  for (size_t i = 64; i < tile.size(); ++i) {
    tile.values[i] = tile.values[i % 64];
  }
  const float largest =
      std::abs(*std::max_element(tile.values.begin(), tile.values.begin() + 64,
                                 [](float a, float b) { return std::abs(a) < std::abs(b); }));
  std::vector<std::byte> side;
  const auto forward = made.Forward(Isa::kScalar, tile, side);
  ASSERT_TRUE(forward);
  for (size_t i = 0; i < forward->size(); ++i) {
    ASSERT_LE(std::abs(forward->values[i]), largest / 126 / 2);
  }
}

TEST(Delta, ValuesFromTheSmallestDenormalToTheLargestThatTilesHold) {
  MadeTransform made("delta", MadeModel(1, 1, 64), 1);
  made.SetRows(0, 3);
  for (const float magnitude : {0x1p-149F, 0x1p-133F, 0x1p-126F, 1e-20F, 1.0F, 16384.0F, 1e30F}) {
    Rng rng(6);
    Tile tile = MadeTile(rng, 1, 3, 64);
    for (float& v : tile.values) {
      v = std::clamp(v, -1.0F, 1.0F) * magnitude;
    }
    std::vector<std::byte> side;
    const auto forward = made.Forward(Isa::kScalar, tile, side);
    ASSERT_TRUE(forward);
    const auto back = made.Inverse(Isa::kScalar, *forward, side);
    ASSERT_TRUE(back);
    for (size_t i = 0; i < tile.size(); ++i) {
      // An anchor errs by half a step, and a step is no smaller than bf16's smallest number.
      const float anchor = std::max(magnitude / 253.0F, 0x1p-133F);
      ASSERT_NEAR(back->values[i], tile.values[i], i < 64 ? anchor : magnitude * 1e-6F)
          << magnitude << " at " << i;
    }
  }
}

TEST(Delta, AStepThatIsNegativeOrNotFiniteIsCorrupt) {
  MadeTransform made("delta", MadeModel(1, 1, 64), 1);
  made.SetRows(0, 2);
  for (const uint16_t bits : {0x7F80, 0x7FC0, 0x8000, 0xBF80, 0xFFFF}) {
    Tile tile;
    tile.Resize(1, 1, 64);
    std::vector<std::byte> side(66, std::byte{128});
    side[0] = static_cast<std::byte>(bits & 0xFF);
    side[1] = static_cast<std::byte>(bits >> 8);
    const auto refused = made.Inverse(Isa::kScalar, tile, side);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kCorrupt);
  }
}

}  // namespace
}  // namespace kvik::codec
