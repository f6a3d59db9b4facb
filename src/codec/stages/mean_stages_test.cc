// SPDX-License-Identifier: Apache-2.0
// center and selfcenter.
#include <gtest/gtest.h>

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

TEST(Center, TakesTheMeanOfLayerAndHead) {
  MadeTransform made("center", MadeModel(3, 4, 80), 1);
  const SideTensor& means = *made.side_info.Find("center/k/");
  Rng rng(2);
  made.SetRows(0, 5);
  const std::vector<int32_t> heads = {1, 3};  // of the model, as when a frame holds some
  made.context.heads = heads;
  made.context.layer = 1;
  const Tile tile = MadeTile(rng, 2, 5, 80);
  std::vector<std::byte> side;
  const auto centred = made.Forward(Isa::kScalar, tile, side);
  ASSERT_TRUE(centred);
  EXPECT_TRUE(side.empty());
  for (size_t head = 0; head < 2; ++head) {
    for (size_t row = 0; row < 5; ++row) {
      for (size_t c = 0; c < 80; ++c) {
        const size_t at = (head * 5 + row) * 80 + c;
        const size_t mean = (4 + static_cast<size_t>(heads[head])) * 80 + c;
        ASSERT_EQ(centred->values[at], tile.values[at] - means.values[mean]);
      }
    }
  }
}

// Keys of models with key biases: +-211 in some channels, spread around by 1. What is left after
// centring has the spread's size, and comes back exactly to bf16.
TEST(Center, HugeKeyMeansLeaveTheSpread) {
  constexpr size_t kDim = 64;
  MadeTransform made("hadamard", MadeModel(1, 1, kDim), 1);
  std::vector<float> means(kDim);
  for (size_t c = 0; c < kDim; ++c) {
    means[c] = c % 3 == 0 ? (c % 2 == 0 ? 211.0F : -211.0F) : 0.25F;
  }
  ASSERT_TRUE(made.side_info.Add("center/k/", {1, 1, kDim}, means));
  made.Make("center");
  Rng rng(3);
  made.SetRows(0, 100);
  Tile tile;
  tile.Resize(1, 100, kDim);
  for (size_t i = 0; i < tile.size(); ++i) {
    tile.values[i] = ToFloat(ToBf16(means[i % kDim] + testing::Normal(rng)));
  }
  std::vector<std::byte> side;
  const auto centred = made.Forward(Isa::kScalar, tile, side);
  ASSERT_TRUE(centred);
  for (size_t i = 0; i < tile.size(); ++i) {
    ASSERT_LT(std::abs(centred->values[i]), 6.5F);
  }
  const auto back = made.Inverse(Isa::kScalar, *centred, side);
  ASSERT_TRUE(back);
  for (size_t i = 0; i < tile.size(); ++i) {
    ASSERT_EQ(ToBf16(back->values[i]).bits, ToBf16(tile.values[i]).bits);
  }
}

TEST(Center, MissingOrMisshapenMeansAreNamed) {
  MadeTransform made("hadamard", MadeModel(2, 2, 64), 1);
  ASSERT_TRUE(made.side_info.Add("center/k/", {2, 64}, std::vector<float>(128)));
  const auto misshapen = made.TryMake("center");
  ASSERT_FALSE(misshapen);
  EXPECT_EQ(misshapen.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(misshapen.error().message.find("center/k/"), std::string::npos);
}

TEST(SelfCenter, StoresTheMeanOfTheFrame) {
  constexpr int32_t kRows = 33;
  MadeTransform made("selfcenter", MadeModel(1, 2, 100), 1);
  made.SetRows(0, kRows);
  Rng rng(5);
  const Tile tile = MadeTile(rng, 2, kRows, 100);
  std::vector<std::byte> side;
  const auto centred = made.Forward(Isa::kScalar, tile, side);
  ASSERT_TRUE(centred);
  ASSERT_EQ(side.size(), 2U * 2U * 100U);
  ByteReader reader(side);
  for (int32_t head = 0; head < 2; ++head) {
    for (size_t c = 0; c < 100; ++c) {
      double sum = 0;
      for (size_t row = 0; row < kRows; ++row) {
        sum += tile.Head(head)[row * 100 + c];
      }
      const float mean = ToFloat(*reader.Half());
      ASSERT_NEAR(mean, sum / kRows, std::abs(sum / kRows) * 0x1p-11 + 1e-4);
      for (size_t row = 0; row < kRows; ++row) {
        ASSERT_EQ(centred->Head(head)[row * 100 + c], tile.Head(head)[row * 100 + c] - mean);
      }
    }
  }
}

TEST(SelfCenter, NoRowsNoBytes) {
  MadeTransform made("selfcenter", MadeModel(1, 2, 64), 1);
  made.SetRows(0, 0);
  Tile tile;
  tile.Resize(2, 0, 64);
  std::vector<std::byte> side;
  ASSERT_TRUE(made.Forward(Isa::kScalar, tile, side));
  EXPECT_TRUE(side.empty());
}

TEST(SelfCenter, AMeanThatOverflowsAHalfIsRefused) {
  MadeTransform made("selfcenter", MadeModel(1, 1, 64), 1);
  made.SetRows(0, 2);
  Tile tile;
  tile.Resize(1, 2, 64);
  tile.values.assign(tile.size(), 1.0F);
  tile.values[5] = tile.values[64 + 5] = -70000.0F;
  std::vector<std::byte> side;
  const auto refused = made.Forward(Isa::kScalar, tile, side);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
}

TEST(SelfCenter, AMeanThatIsNotFiniteIsCorrupt) {
  MadeTransform made("selfcenter", MadeModel(1, 1, 64), 1);
  made.SetRows(0, 2);
  Tile tile;
  tile.Resize(1, 2, 64);
  std::vector<std::byte> side(128);
  side[11] = std::byte{0x7C};  // infinity
  const auto refused = made.Inverse(Isa::kScalar, tile, side);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace kvik::codec
