// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "codec/testing/quantizer_runs.h"

namespace kvik::codec {
namespace {

using testing::DecodeRun;
using testing::QuantizerCase;
using testing::QuantizerRun;
using testing::RunQuantizer;

constexpr uint64_t kSeed = 20240902;

// All finite magnitudes of e4m3, ascending.
std::vector<float> Magnitudes() {
  std::vector<float> all;
  for (int exponent = 0; exponent < 16; ++exponent) {
    for (int mantissa = 0; mantissa < (exponent == 15 ? 7 : 8); ++mantissa) {
      all.push_back(exponent == 0
                        ? std::ldexp(static_cast<float>(mantissa), -9)
                        : std::ldexp(1.0F + static_cast<float>(mantissa) / 8, exponent - 7));
    }
  }
  return all;
}

// The nearest number of e4m3, the even one of two.
float Nearest(float x) {
  static const std::vector<float> kAll = Magnitudes();
  size_t best = 0;
  for (size_t i = 1; i < kAll.size(); ++i) {
    const float error = std::abs(kAll[i] - std::abs(x));
    const float least = std::abs(kAll[best] - std::abs(x));
    if (error < least || (error == least && i % 2 == 0)) {
      best = i;
    }
  }
  return std::copysign(kAll[best], x);
}

// The smallest half that is not below x >= 0.
float UpToHalf(float x) {
  F16 half = ToF16(x);
  if (ToFloat(half) < x) {
    ++half.bits;
  }
  return ToFloat(half);
}

TEST(Fp8, NumbersOfTheFormatComeBack) {
  const std::vector<float> all = Magnitudes();
  ASSERT_EQ(all.size(), 127U);
  QuantizerCase c(1, 4, 64);
  c.Fill([&](int32_t, int32_t r, int32_t ch) {
    const float magnitude = all[static_cast<size_t>(std::min(126, r % 2 * 64 + ch))];
    return r < 2 ? magnitude : -magnitude;
  });
  const QuantizerRun run = RunQuantizer("fp8(per=tensor)", c);
  for (size_t i = 0; i < c.tile.size(); ++i) {
    EXPECT_EQ(run.decoded.values[i], c.tile.values[i]);
  }
}

TEST(Fp8, EqualsTheReferenceOverOddShapes) {
  Rng rng(kSeed);
  for (const int32_t head_dim : {64, 80, 96, 100, 112, 128, 192, 256}) {
    for (const int32_t heads : {1, 2, 5}) {
      const int32_t rows = std::vector<int32_t>{1, 2, 3, 19}[rng.Below(4)];
      QuantizerCase c(heads, rows, head_dim);
      c.FillMade(rng.Next());
      const QuantizerRun by_channel = RunQuantizer("fp8(per=channel)", c);
      const QuantizerRun by_token = RunQuantizer("fp8(per=token,group=32)", c);
      RunQuantizer("fp8(per=token)", c);
      EXPECT_EQ(by_channel.side.size(),
                static_cast<size_t>(heads) * static_cast<size_t>(head_dim) * 2);
      for (int32_t h = 0; h < heads; ++h) {
        for (int32_t r = 0; r < rows; ++r) {
          for (int32_t ch = 0; ch < head_dim; ++ch) {
            float of_channel = 0;
            for (int32_t r2 = 0; r2 < rows; ++r2) {
              of_channel = std::max(of_channel, std::abs(QuantizerCase::At(c.tile, h, r2, ch)));
            }
            float of_group = 0;
            for (int32_t c2 = ch / 32 * 32; c2 < std::min(head_dim, ch / 32 * 32 + 32); ++c2) {
              of_group = std::max(of_group, std::abs(QuantizerCase::At(c.tile, h, r, c2)));
            }
            const float x = QuantizerCase::At(c.tile, h, r, ch);
            const auto expect = [&](float largest, float actual) {
              const float m = UpToHalf(largest);
              const float value = m == 0 ? 0 : Nearest(x * (448 / m)) * (m / 448);
              ASSERT_EQ(actual, value) << "seed " << kSeed << " x " << x;
              // Half a unit of 3 bits, or of the smallest exponent.
              ASSERT_LE(std::abs(actual - x),
                        std::max(std::abs(x) / 16, m / 448 * 0x1.0p-10F) * 1.0001F);
            };
            expect(of_channel, QuantizerCase::At(by_channel.decoded, h, r, ch));
            expect(of_group, QuantizerCase::At(by_token.decoded, h, r, ch));
          }
        }
      }
    }
  }
}

TEST(Fp8, ZeroNegativeZeroAndSubnormalChannels) {
  QuantizerCase c(1, 3, 64);
  c.Fill([](int32_t, int32_t r, int32_t ch) {
    return ch % 3 == 0 ? 0.0F : ch % 3 == 1 ? -0.0F : 0x1.0p-128F * static_cast<float>(r);
  });
  const QuantizerRun run = RunQuantizer("fp8(per=channel)", c);
  for (size_t i = 0; i < c.tile.size(); ++i) {
    EXPECT_NEAR(run.decoded.values[i], c.tile.values[i], 0x1.0p-24F);
  }
}

TEST(Fp8, ScalesThatOverflowAHalfAreRefused) {
  QuantizerCase c(1, 3, 64);
  c.tile.values[70] = -65520;
  const auto quantizer = c.Make("fp8");
  ASSERT_TRUE(quantizer);
  SymbolPlanes planes;
  std::vector<std::byte> side;
  ByteWriter writer(side);
  const auto done = (*quantizer)->Quantize(c.Context(Isa::kScalar), c.tile, planes, writer);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kUnsupported);
}

TEST(Fp8, SideBytesTruncatedOrLying) {
  QuantizerCase c(2, 70, 64);
  c.FillMade(kSeed);
  const auto quantizer = c.Make("fp8(per=token)");
  QuantizerRun run = RunQuantizer("fp8(per=token)", c);
  for (size_t size = 0; size < run.side.size(); ++size) {
    const auto decoded =
        DecodeRun(**quantizer, c, Isa::kScalar, run.planes, std::span(run.side).first(size));
    ASSERT_FALSE(decoded);
    EXPECT_EQ(decoded.error().code, ErrorCode::kCorrupt);
  }
  run.side[1] = std::byte{0xFF};
  EXPECT_EQ(DecodeRun(**quantizer, c, Isa::kScalar, run.planes, run.side).error().code,
            ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace kvik::codec
