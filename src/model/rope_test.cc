// SPDX-License-Identifier: Apache-2.0
#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/rng.h"

namespace kvik::model {
namespace {

constexpr long double kPi = 3.14159265358979323846264338327950288L;

double Base(double theta, int i, int head_dim) { return std::pow(theta, -2.0 * i / head_dim); }

TEST(Rope, DefaultAndLinearFrequencies) {
  RopeConfig rope;
  rope.theta = 5e5;
  const RopeTable plain(rope, 80);
  rope.scaling = RopeScaling::kLinear;
  rope.factor = 4;
  const RopeTable linear(rope, 80);
  ASSERT_EQ(plain.frequencies().size(), 40U);
  for (int i = 0; i < 40; ++i) {
    const auto at = static_cast<size_t>(i);
    EXPECT_DOUBLE_EQ(plain.frequencies()[at], Base(5e5, i, 80));
    EXPECT_DOUBLE_EQ(linear.frequencies()[at], Base(5e5, i, 80) / 4);
  }
  EXPECT_EQ(plain.scale(), 1.0);
  EXPECT_EQ(linear.scale(), 1.0);
}

// The rule by wavelength, as the model's authors published it.
TEST(Rope, Llama3FrequenciesByWavelength) {
  RopeConfig rope;
  rope.theta = 5e5;
  rope.scaling = RopeScaling::kLlama3;
  rope.factor = 8;
  rope.low_freq_factor = 1;
  rope.high_freq_factor = 4;
  rope.original_context_tokens = 8192;
  const RopeTable table(rope, 128);
  int kept = 0;
  int divided = 0;
  for (int i = 0; i < 64; ++i) {
    const double base = Base(5e5, i, 128);
    const double wavelength = 2 * static_cast<double>(kPi) / base;
    double expected = base;
    if (wavelength > 8192.0 / 1) {
      expected = base / 8;
      ++divided;
    } else if (wavelength >= 8192.0 / 4) {
      const double smooth = (8192.0 / wavelength - 1) / (4 - 1);
      expected = (1 - smooth) * base / 8 + smooth * base;
    } else {
      ++kept;
    }
    EXPECT_NEAR(table.frequencies()[static_cast<size_t>(i)], expected, expected * 1e-12) << i;
  }
  EXPECT_EQ(kept, 29);
  EXPECT_EQ(divided, 29);
}

// The paper's ramp between the dimensions that turn 32 times and once in the trained context.
TEST(Rope, YarnInterpolatesSlowDimensionsOnly) {
  RopeConfig rope;
  rope.theta = 1e6;
  rope.scaling = RopeScaling::kYarn;
  rope.factor = 4;
  rope.original_context_tokens = 32768;
  const RopeTable table(rope, 128);
  EXPECT_NEAR(table.scale(), 0.1 * std::log(4.0) + 1, 1e-15);
  const auto dimension = [](double turns) {
    return 128 * std::log(32768 / (turns * 2 * static_cast<double>(kPi))) / (2 * std::log(1e6));
  };
  const double low = std::floor(dimension(32));
  const double high = std::ceil(dimension(1));
  ASSERT_GT(low, 0);
  ASSERT_LT(high, 64);
  for (int i = 0; i < 64; ++i) {
    const double base = Base(1e6, i, 128);
    const double actual = table.frequencies()[static_cast<size_t>(i)];
    if (i <= low) {
      EXPECT_NEAR(actual, base, base * 1e-12) << i;
    } else if (i >= high) {
      EXPECT_NEAR(actual, base / 4, base * 1e-12) << i;
    } else {
      const double mask = 1 - (i - low) / (high - low);
      EXPECT_NEAR(actual, base / 4 * (1 - mask) + base * mask, base * 1e-12) << i;
    }
  }
  rope.attention_factor = 1.25;
  EXPECT_EQ(RopeTable(rope, 128).scale(), 1.25);
  rope.truncate = false;
  const RopeTable exact(rope, 128);
  const auto ramped = static_cast<size_t>((low + high) / 2);
  EXPECT_NE(exact.frequencies()[ramped], table.frequencies()[ramped]);
}

TEST(Rope, DivisorsOfTheFileDivide) {
  RopeConfig rope;
  for (int i = 0; i < 8; ++i) {
    rope.frequency_divisors.push_back(static_cast<float>(1 + i));
  }
  const RopeTable table(rope, 16);
  for (int i = 0; i < 8; ++i) {
    EXPECT_DOUBLE_EQ(table.frequencies()[static_cast<size_t>(i)], Base(1e4, i, 16) / (1 + i));
  }
}

TEST(Rope, AnglesAgreeWithTheLibrary) {
  RopeConfig rope;
  rope.scaling = RopeScaling::kYarn;
  rope.factor = 2;
  rope.original_context_tokens = 4096;
  const RopeTable table(rope, 64);
  std::vector<float> cosines(32);
  std::vector<float> sines(32);
  Rng rng(2);
  for (int round = 0; round < 2000; ++round) {
    const auto position = static_cast<int32_t>(round < 100 ? round : rng.Below(1 << 21));
    table.Angles(position, cosines, sines);
    for (size_t i = 0; i < 32; ++i) {
      const long double angle = static_cast<long double>(position * table.frequencies()[i]);
      ASSERT_NEAR(cosines[i], std::cos(angle) * table.scale(), 1e-7) << position << " " << i;
      ASSERT_NEAR(sines[i], std::sin(angle) * table.scale(), 1e-7) << position << " " << i;
    }
  }
  table.Angles(0, cosines, sines);
  EXPECT_EQ(cosines[5], static_cast<float>(table.scale()));
  EXPECT_EQ(sines[5], 0.0F);
}

}  // namespace
}  // namespace kvik::model
