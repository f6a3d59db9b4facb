// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "codec/testing/quantizer_runs.h"

namespace kvik::codec {
namespace {

using testing::QuantizerCase;
using testing::QuantizerRun;
using testing::RunQuantizer;

TEST(KeepBf16, EveryFinitePatternComesBack) {
  QuantizerCase c(1, 256, 256);
  c.Fill([](int32_t, int32_t r, int32_t ch) {
    const float v = ToFloat(Bf16{static_cast<uint16_t>(r << 8 | ch)});
    return std::isfinite(v) ? v : 0.0F;
  });
  const QuantizerRun run = RunQuantizer("none", c);
  EXPECT_TRUE(run.side.empty());
  EXPECT_EQ(run.PackedBits(), 16);
  for (size_t i = 0; i < c.tile.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(run.decoded.values[i]),
              std::bit_cast<uint32_t>(c.tile.values[i]));
  }
}

TEST(KeepBf16, OddShapesAndValuesInBetween) {
  for (const int32_t head_dim : {64, 80, 96, 100, 112, 128, 192, 256}) {
    for (const int32_t rows : {0, 1, 2, 3, 17}) {
      QuantizerCase c(5, rows, head_dim);
      Rng rng(7);
      c.Fill([&](int32_t, int32_t, int32_t) { return testing::Normal(rng); });
      const QuantizerRun run = RunQuantizer("none", c);
      for (size_t i = 0; i < c.tile.size(); ++i) {
        ASSERT_EQ(run.decoded.values[i], ToFloat(ToBf16(c.tile.values[i])));
      }
    }
  }
}

}  // namespace
}  // namespace kvik::codec
