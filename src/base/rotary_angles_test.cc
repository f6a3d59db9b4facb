// SPDX-License-Identifier: Apache-2.0
#include "base/rotary_angles.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "base/rng.h"

namespace kvik {
namespace {

std::vector<double> Frequencies(double theta, size_t n) {
  std::vector<double> frequencies;
  for (size_t i = 0; i < n; ++i) {
    frequencies.push_back(std::pow(theta, -static_cast<double>(i) / static_cast<double>(n)));
  }
  return frequencies;
}

std::vector<int32_t> Positions() {
  std::vector<int32_t> positions = {0, 1, 2, 3, 1000000, 2097151};
  Rng rng(7);
  for (int i = 0; i < 500; ++i) {
    positions.push_back(static_cast<int32_t>(i < 100 ? i : rng.Below(1 << 21)));
  }
  return positions;
}

TEST(RotaryAngles, AgreeWithTheLibrary) {
  for (const size_t n : {1U, 32U, 50U, 128U}) {
    const std::vector<double> frequencies = Frequencies(1e4, n);
    const std::vector<int32_t> positions = Positions();
    std::vector<float> cosines(positions.size() * n);
    std::vector<float> sines(positions.size() * n);
    RotaryAngles(Isa::kScalar, positions, frequencies, 1.25, cosines.data(), sines.data());
    for (size_t p = 0; p < positions.size(); ++p) {
      for (size_t i = 0; i < n; ++i) {
        const long double angle = static_cast<long double>(positions[p] * frequencies[i]);
        ASSERT_NEAR(cosines[p * n + i], std::cos(angle) * 1.25L, 1e-7) << positions[p] << " " << i;
        ASSERT_NEAR(sines[p * n + i], std::sin(angle) * 1.25L, 1e-7) << positions[p] << " " << i;
      }
    }
    EXPECT_EQ(cosines[0], 1.25F);
    EXPECT_EQ(sines[0], 0.0F);
  }
}

TEST(RotaryAngles, SameBitsOnEveryIsa) {
  for (const size_t n : {1U, 7U, 32U, 45U, 64U}) {
    const std::vector<double> frequencies = Frequencies(1e6, n);
    const std::vector<int32_t> positions = Positions();
    const auto run = [&](Isa isa) {
      std::vector<float> both(2 * positions.size() * n);
      RotaryAngles(isa, positions, frequencies, 1.1386294361119891, both.data(),
                   both.data() + positions.size() * n);
      return both;
    };
    const std::vector<float> scalar = run(Isa::kScalar);
    for (const Isa isa : SupportedIsas()) {
      EXPECT_EQ(run(isa), scalar) << IsaName(isa) << " " << n;
    }
  }
}

// Compressed keys are stored for long: angles must not change by a bit between versions.
TEST(RotaryAngles, AreTheSameBitsForEver) {
  const double frequencies[] = {1.0, 0.5, 0.01, 0.000123};
  const int32_t positions[] = {0, 1, 12345, 1000000};
  float cosines[16];
  float sines[16];
  RotaryAngles(Isa::kScalar, positions, frequencies, 1.0, cosines, sines);
  uint64_t hash = 0xCBF29CE484222325ULL;
  for (const float* values : {cosines, sines}) {
    for (int i = 0; i < 16; ++i) {
      hash = (hash ^ std::bit_cast<uint32_t>(values[i])) * 0x100000001B3ULL;
    }
  }
  EXPECT_EQ(hash, 0xC5078387F79B6DCEULL);
}

}  // namespace
}  // namespace kvik
