// SPDX-License-Identifier: Apache-2.0
#include "kv/gap_histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/rng.h"

namespace kvik::kv {
namespace {

TEST(GapHistogram, QuantilesAreAtMostOneBinTooHigh) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    GapHistogram gaps;
    std::vector<double> seconds;
    for (int i = 0; i < 3000; ++i) {
      const double s = std::exp(-6 + 18 * rng.Uniform());  // 2.5 ms to two days
      const auto us = static_cast<int64_t>(s * 1e6);
      seconds.push_back(static_cast<double>(us) * 1e-6);
      gaps.Add(us, 1);
    }
    std::sort(seconds.begin(), seconds.end());
    for (const double q : {0.01, 0.5, 0.9, 0.99, 1.0}) {
      const auto rank = static_cast<size_t>(std::ceil(q * 3000)) - 1;
      EXPECT_GE(gaps.QuantileSeconds(q), seconds[rank]) << q;
      EXPECT_LE(gaps.QuantileSeconds(q), seconds[rank] * std::exp2(1.0 / 16) * (1 + 1e-9)) << q;
    }
    EXPECT_EQ(gaps.num_samples(), 3000);
  }
}

TEST(GapHistogram, TakesGapsBeyondBothEnds) {
  GapHistogram gaps;
  gaps.Add(0, 1);
  EXPECT_LE(gaps.QuantileSeconds(1), 0.0011);
  gaps.Add(INT64_MAX, 1);
  EXPECT_GE(gaps.QuantileSeconds(1), 365 * 86'400.0);
}

TEST(GapHistogram, OldSamplesFade) {
  GapHistogram gaps;
  gaps.Add(1'000'000'000, 1000);
  for (int i = 0; i < 100; ++i) {
    gaps.Decay(0.9);
  }
  gaps.Add(1'000'000, 100);
  EXPECT_LT(gaps.QuantileSeconds(0.99), 1.05);
  EXPECT_EQ(gaps.num_samples(), 1100);
}

}  // namespace
}  // namespace kvik::kv
