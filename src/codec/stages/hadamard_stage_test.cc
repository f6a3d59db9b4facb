// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "base/rng.h"
#include "codec/testing/made_transform.h"

namespace kvik::codec {
namespace {

using testing::MadeModel;
using testing::MadeTile;
using testing::MadeTransform;

// Part sizes of n channels by hand.
std::vector<size_t> Parts(int32_t n) {
  switch (n) {
    case 1:
      return {1};
    case 6:
      return {4, 2};
    case 80:
      return {64, 16};
    case 96:
      return {64, 32};
    case 100:
      return {64, 32, 4};
    case 112:
      return {64, 32, 16};
    case 192:
      return {128, 64};
    default:
      return {static_cast<size_t>(n)};
  }
}

// The definition: entry (i, j) of a Hadamard matrix is -1 where i and j have an odd number of ones
// in common.
TEST(Hadamard, IsTheMatrixOfEachPartAfterSigns) {
  for (const int32_t n : {1, 2, 4, 6, 8, 16, 32, 64, 80, 96, 100, 112, 128, 192, 256, 512, 1024}) {
    MadeTransform made("hadamard(seed=3)", MadeModel(1, 1, n), 1);
    made.SetRows(0, 3);
    Rng rng(4, static_cast<uint64_t>(n));
    const Tile tile = MadeTile(rng, 1, 3, n);
    std::vector<std::byte> side;
    const auto forward = made.Forward(Isa::kScalar, tile, side);
    ASSERT_TRUE(forward);
    EXPECT_TRUE(side.empty());
    Rng signs(3);
    size_t first = 0;
    for (const size_t part : Parts(n)) {
      std::vector<double> sign;
      for (size_t i = 0; i < part; ++i) {
        sign.push_back((signs.Next() & 1) != 0 ? -1 : 1);
      }
      for (size_t row = 0; row < 3; ++row) {
        const float* const x = tile.values.data() + row * static_cast<size_t>(n) + first;
        const float* const y = forward->values.data() + row * static_cast<size_t>(n) + first;
        for (size_t i = 0; i < part; ++i) {
          double sum = 0;
          double magnitude = 0;
          for (size_t j = 0; j < part; ++j) {
            const double term = sign[j] * static_cast<double>(x[j]);
            sum += std::popcount(i & j) % 2 != 0 ? -term : term;
            magnitude += std::abs(term);
          }
          const double norm = std::sqrt(static_cast<double>(part));
          ASSERT_NEAR(y[i], sum / norm, magnitude / norm * 1e-6) << n << " channel " << first + i;
        }
      }
      first += part;
    }
    EXPECT_EQ(first, static_cast<size_t>(n));
  }
}

TEST(Hadamard, SeedsGiveDifferentSigns) {
  Rng rng(4);
  const Tile tile = MadeTile(rng, 1, 1, 64);
  std::vector<std::byte> side;
  MadeTransform one("hadamard", MadeModel(1, 1, 64), 1);
  MadeTransform other("hadamard(seed=2)", MadeModel(1, 1, 64), 1);
  one.SetRows(0, 1);
  other.SetRows(0, 1);
  EXPECT_NE(one.Forward(Isa::kScalar, tile, side)->values,
            other.Forward(Isa::kScalar, tile, side)->values);
}

}  // namespace
}  // namespace kvik::codec
