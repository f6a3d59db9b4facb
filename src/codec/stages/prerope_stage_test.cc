// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

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

// A key that is rotated by the definition, in double, is turned back to itself.
TEST(PreRope, UndoesTheRotationOfTheModel) {
  for (const double scale : {1.0, 1.1386294361119891}) {
    for (const int32_t head_dim : {2, 64, 100, 128}) {
      for (const int32_t first : {0, 511, 1000000}) {
        constexpr int32_t kRows = 40;  // more than are turned at a time
        ModelFacts model = MadeModel(1, 2, head_dim);
        model.rope_scale = scale;
        MadeTransform made("prerope", model, 1);
        made.SetRows(first, kRows);
        Rng rng(8);
        const Tile keys = MadeTile(rng, 2, kRows, head_dim);
        Tile rotated = keys;
        const auto half = static_cast<size_t>(head_dim) / 2;
        for (size_t row = 0; row < 2 * static_cast<size_t>(kRows); ++row) {
          for (size_t i = 0; i < half; ++i) {
            const double angle = made.positions[row % kRows] * model.rope_frequencies[i];
            const size_t at = row * 2 * half + i;
            const double a = keys.values[at];
            const double b = keys.values[at + half];
            rotated.values[at] =
                static_cast<float>((a * std::cos(angle) - b * std::sin(angle)) * scale);
            rotated.values[at + half] =
                static_cast<float>((b * std::cos(angle) + a * std::sin(angle)) * scale);
          }
        }
        std::vector<std::byte> side;
        const auto back = made.Forward(Isa::kScalar, rotated, side);
        ASSERT_TRUE(back);
        EXPECT_TRUE(side.empty());
        for (size_t i = 0; i < keys.size(); ++i) {
          ASSERT_NEAR(back->values[i], keys.values[i], 1e-6 * 600) << head_dim << " " << first;
        }
      }
    }
  }
}

// Rows of a tile need not be neighbours: a selector may have left gaps.
TEST(PreRope, TakesPositionsAsTheyAre) {
  MadeTransform made("prerope", MadeModel(1, 1, 64), 1);
  Rng rng(8);
  const Tile keys = MadeTile(rng, 1, 70, 64);
  made.SetRows(0, 70);
  for (size_t i = 0; i < 70; ++i) {
    made.positions[i] = static_cast<int32_t>(i * i);
  }
  std::vector<std::byte> side;
  const auto all = made.Forward(Isa::kScalar, keys, side);
  ASSERT_TRUE(all);
  for (const size_t row : {0U, 1U, 31U, 32U, 69U}) {
    Tile one;
    one.Resize(1, 1, 64);
    std::copy_n(keys.values.begin() + static_cast<ptrdiff_t>(row * 64), 64, one.values.begin());
    made.SetRows(static_cast<int32_t>(row * row), 1);
    const auto alone = made.Forward(Isa::kScalar, one, side);
    ASSERT_TRUE(alone);
    for (size_t c = 0; c < 64; ++c) {
      ASSERT_EQ(alone->values[c], all->values[row * 64 + c]);
    }
  }
}

TEST(PreRope, ModelsItDoesNotFitAreRefused) {
  const auto error_of = [](const ModelFacts& model) {
    MadeTransform made("hadamard", model, 1);
    const auto transform = made.TryMake("prerope");
    return transform ? std::string("made") : transform.error().message;
  };
  ModelFacts model = MadeModel(1, 1, 64);
  EXPECT_EQ(error_of(model), "made");
  model.rope_frequencies.pop_back();
  EXPECT_EQ(error_of(model), "there are 31 rotary frequencies for 64 channels");
  model.rope_frequencies.push_back(std::nan(""));
  EXPECT_EQ(error_of(model), "nan radians a position is no rotary frequency");
  model.rope_frequencies.clear();
  EXPECT_EQ(error_of(model), "this model has no rotary positions");
  model = MadeModel(1, 1, 64);
  model.rope_scale = 0;
  EXPECT_EQ(error_of(model), "a rotary scale of 0");
}

}  // namespace
}  // namespace kvik::codec
