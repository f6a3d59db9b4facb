// SPDX-License-Identifier: Apache-2.0
// What every transform promises: values come back within rounding, the same bits on every ISA,
// nothing depends on what was in a buffer before, and damaged side bytes are refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/isa.h"
#include "codec/testing/made_transform.h"

namespace kvik::codec {
namespace {

using testing::MadeModel;
using testing::MadeTile;
using testing::MadeTransform;

constexpr uint64_t kSeed = 501;
constexpr int32_t kHeadDims[] = {64, 80, 96, 100, 112, 128, 192, 256};
constexpr int32_t kRows[] = {0, 1, 2, 3, 16, 37, 100};

const char* const kTransforms[] = {"center",
                                   "selfcenter",
                                   "prerope",
                                   "hadamard",
                                   "hadamard(seed=7)",
                                   "affine",
                                   "affine(kind=full)",
                                   "delta",
                                   "delta(group=2)",
                                   "delta(group=16)",
                                   "klt",
                                   "qklt",
                                   "jklt"};

std::vector<float> Values(const Tile& tile) {
  return {tile.values.begin(), tile.values.begin() + static_cast<ptrdiff_t>(tile.size())};
}

// As bits: -0 is not 0.
std::vector<uint32_t> Bits(const Tile& tile) {
  std::vector<uint32_t> bits;
  for (const float v : Values(tile)) {
    bits.push_back(std::bit_cast<uint32_t>(v));
  }
  return bits;
}

class EveryTransformTest : public ::testing::TestWithParam<const char*> {};

// The largest error of any value as a share of the largest value of its row.
double WorstError(const Tile& expected, const Tile& actual) {
  double worst = 0;
  const auto channels = static_cast<size_t>(expected.channels);
  for (size_t row = 0; row < expected.size(); row += channels) {
    double largest = 1e-30;
    double error = 0;
    for (size_t i = row; i < row + channels; ++i) {
      largest = std::max(largest, static_cast<double>(std::abs(expected.values[i])));
      error = std::max(error, std::abs(static_cast<double>(expected.values[i]) -
                                       static_cast<double>(actual.values[i])));
    }
    worst = std::max(worst, error / largest);
  }
  return worst;
}

// Of a row's largest value. delta stores its anchors with 8 bits; everything else is exact but for
// float32, whose rounding a basis that is not orthogonal magnifies.
double Bound(const std::string& text) {
  return text.starts_with("delta")                                         ? 4.1e-3
         : text == "qklt" || text == "jklt" || text == "affine(kind=full)" ? 2e-5
                                                                           : 3e-6;
}

TEST_P(EveryTransformTest, ComesBackWithinRoundingOverOddShapes) {
  const std::string text = GetParam();
  const Isa best = SupportedIsas().back();
  for (const int32_t head_dim : kHeadDims) {
    for (const int32_t heads : {1, 5}) {
      if (text == "jklt" && heads * head_dim > 512) {
        continue;  // its matrices take long to make
      }
      Rng rng(kSeed, static_cast<uint64_t>(head_dim * heads));
      MadeTransform made(text, MadeModel(head_dim < 192 ? 2 : 1, heads, head_dim), kSeed);
      for (const int32_t rows : kRows) {
        for (const int32_t first : {0, 1000000}) {
          made.SetRows(first, rows);
          const Tile tile = MadeTile(rng, heads, rows, head_dim);
          std::vector<std::byte> side;
          const auto forward = made.Forward(best, tile, side);
          ASSERT_TRUE(forward) << forward.error().message;
          const Transform::Shape shape = made.transform->Output({rows, head_dim});
          EXPECT_EQ(forward->rows, shape.rows);
          EXPECT_EQ(forward->channels, shape.channels);
          std::vector<int32_t> left = made.positions;
          made.transform->DropPositions(left);
          EXPECT_EQ(left.size(), static_cast<size_t>(shape.rows));
          const auto inverse = made.Inverse(best, *forward, side);
          ASSERT_TRUE(inverse) << inverse.error().message;
          ASSERT_EQ(inverse->heads, heads);
          ASSERT_EQ(inverse->rows, rows);
          ASSERT_EQ(inverse->channels, head_dim);
          ASSERT_LT(WorstError(tile, *inverse), Bound(text))
              << text << " [" << heads << ", " << rows << ", " << head_dim << "] at " << first
              << " seed " << kSeed;
        }
      }
    }
  }
}

TEST_P(EveryTransformTest, GivesTheSameBitsOnEveryIsa) {
  for (const int32_t head_dim : kHeadDims) {
    Rng rng(kSeed, static_cast<uint64_t>(head_dim));
    MadeTransform made(GetParam(), MadeModel(1, 2, head_dim), kSeed);
    for (const int32_t rows : {1, 2, 9, 51}) {
      made.SetRows(12345, rows);
      const Tile tile = MadeTile(rng, 2, rows, head_dim);
      std::vector<std::byte> expected_side;
      const auto expected = made.Forward(Isa::kScalar, tile, expected_side);
      ASSERT_TRUE(expected);
      const auto expected_back = made.Inverse(Isa::kScalar, *expected, expected_side);
      ASSERT_TRUE(expected_back);
      for (const Isa isa : SupportedIsas()) {
        std::vector<std::byte> side;
        const auto forward = made.Forward(isa, tile, side);
        ASSERT_TRUE(forward);
        ASSERT_EQ(Bits(*forward), Bits(*expected)) << IsaName(isa) << " " << head_dim;
        ASSERT_EQ(side, expected_side) << IsaName(isa) << " " << head_dim;
        const auto back = made.Inverse(isa, *forward, side);
        ASSERT_TRUE(back);
        ASSERT_EQ(Bits(*back), Bits(*expected_back)) << IsaName(isa) << " " << head_dim;
      }
    }
  }
}

// Channels that are constant, all zero, -0.0 and denormal, also with nothing else in the tile.
TEST_P(EveryTransformTest, ConstantZeroAndDenormalChannels) {
  constexpr int32_t kDim = 80;
  MadeTransform made(GetParam(), MadeModel(1, 2, kDim), kSeed);
  made.SetRows(7, 12);
  const float kinds[] = {3.5F, 0.0F, -0.0F, 0x1p-133F, -211.0F};
  for (size_t kind = 0; kind <= std::size(kinds); ++kind) {
    Tile tile;
    tile.Resize(2, 12, kDim);
    for (size_t i = 0; i < tile.size(); ++i) {
      tile.values[i] = kinds[kind < std::size(kinds) ? kind : i % kDim % std::size(kinds)];
    }
    std::vector<std::byte> side;
    const auto forward = made.Forward(Isa::kScalar, tile, side);
    ASSERT_TRUE(forward) << forward.error().message;
    for (const float v : Values(*forward)) {
      ASSERT_TRUE(std::isfinite(v));
    }
    const auto back = made.Inverse(Isa::kScalar, *forward, side);
    ASSERT_TRUE(back) << back.error().message;
    // A calibrated mean of hundreds that is taken from a zero and given back leaves its rounding.
    const double around = std::string(GetParam()) == "center" ? 1000.0 : 4.0;
    for (size_t i = 0; i < tile.size(); ++i) {
      const double largest = kind < std::size(kinds) ? std::abs(kinds[kind]) : 211.0;
      const double bound = Bound(GetParam()) * std::max(largest, 1e-38) +
                           (std::string(GetParam()) == "center" ? 1e-7 * around : 1e-38);
      ASSERT_NEAR(back->values[i], tile.values[i], bound) << GetParam() << " kind " << kind;
    }
    for (const Isa isa : SupportedIsas()) {
      std::vector<std::byte> side_here;
      const auto here = made.Forward(isa, tile, side_here);
      ASSERT_TRUE(here);
      EXPECT_EQ(Bits(*here), Bits(*forward)) << IsaName(isa);
      EXPECT_EQ(side_here, side) << IsaName(isa);
    }
  }
}

TEST_P(EveryTransformTest, WhatWasInTheBufferDoesNotMatter) {
  MadeTransform made(GetParam(), MadeModel(2, 2, 96), kSeed);
  made.SetRows(5, 23);
  Rng rng(kSeed);
  Tile tile = MadeTile(rng, 2, 23, 96);
  std::vector<std::byte> clean_side;
  const auto clean = made.Forward(Isa::kScalar, tile, clean_side);
  ASSERT_TRUE(clean);
  tile.values.resize(tile.size() + 100000, std::numeric_limits<float>::quiet_NaN());
  std::vector<std::byte> side;
  const auto dirty = made.Forward(Isa::kScalar, tile, side);
  ASSERT_TRUE(dirty);
  EXPECT_EQ(Bits(*dirty), Bits(*clean));
  EXPECT_EQ(side, clean_side);
}

TEST_P(EveryTransformTest, SideBytesThatAreCutShortAreRefused) {
  MadeTransform made(GetParam(), MadeModel(2, 2, 64), kSeed);
  made.SetRows(5, 23);
  Rng rng(kSeed);
  std::vector<std::byte> side;
  const auto forward = made.Forward(Isa::kScalar, MadeTile(rng, 2, 23, 64), side);
  ASSERT_TRUE(forward);
  for (size_t size = 0; size < side.size(); size += 1 + size / 3) {
    const std::vector<std::byte> cut(side.begin(), side.begin() + static_cast<ptrdiff_t>(size));
    const auto back = made.Inverse(Isa::kScalar, *forward, cut);
    ASSERT_FALSE(back);
    EXPECT_EQ(back.error().code, ErrorCode::kCorrupt);
  }
}

// Any bytes give values or an error, never more.
TEST_P(EveryTransformTest, AnySideBytesAreSafe) {
  MadeTransform made(GetParam(), MadeModel(2, 2, 64), kSeed);
  made.SetRows(5, 23);
  Rng rng(kSeed);
  std::vector<std::byte> side;
  const auto forward = made.Forward(Isa::kScalar, MadeTile(rng, 2, 23, 64), side);
  ASSERT_TRUE(forward);
  for (int round = 0; round < 200; ++round) {
    for (std::byte& byte : side) {
      byte = static_cast<std::byte>(rng.Next());
    }
    const auto back = made.Inverse(Isa::kScalar, *forward, side);
    if (back) {
      EXPECT_EQ(back->rows, 23);
    } else {
      EXPECT_EQ(back.error().code, ErrorCode::kCorrupt);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Transforms, EveryTransformTest, ::testing::ValuesIn(kTransforms),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !std::isalnum(c); },
                               '_');
                           return name;
                         });

}  // namespace
}  // namespace kvik::codec
