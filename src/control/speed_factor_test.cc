// SPDX-License-Identifier: Apache-2.0
#include "control/speed_factor.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"

namespace kvik::control {
namespace {

TEST(SpeedFactors, WhatSlowsEveryArmIsLearnedFromOne) {
  SpeedFactors factors(3, {});
  for (uint64_t i = 1; i <= 30; ++i) {
    factors.Observe(0, 1, i);
    factors.Observe(1, 1, i);
  }
  for (uint64_t i = 31; i <= 45; ++i) {
    factors.Observe(0, 2, i);
  }
  EXPECT_NEAR(factors.Expected(0, 45), 2, 0.1);
  EXPECT_GT(factors.Expected(1, 45), 1.7);
  EXPECT_GT(factors.Expected(2, 45), 1.7);  // never used
}

TEST(SpeedFactors, WhatIsOneArmsOwnStaysItsOwn) {
  Rng rng(1);
  SpeedFactors factors(3, {});
  const double truth[] = {1.0, 1.5, 0.8};
  for (uint64_t i = 1; i <= 300; ++i) {
    const size_t arm = rng.Below(3);
    factors.Observe(arm, truth[arm] * (0.9 + 0.2 * rng.Uniform()), i);
  }
  for (size_t arm = 0; arm < 3; ++arm) {
    EXPECT_NEAR(factors.Expected(arm, 300) / truth[arm], 1, 0.12) << arm;
  }
}

TEST(SpeedFactors, OneStallMovesThemByLittle) {
  SpeedFactors factors(1, {});
  for (uint64_t i = 1; i <= 30; ++i) {
    factors.Observe(0, 1, i);
  }
  factors.Observe(0, 1e6, 31);
  EXPECT_LT(factors.Expected(0, 31), 2.5);
}

TEST(SpeedFactors, ASlowArmIsForgivenWithTime) {
  SpeedFactors factors(2, {});
  for (uint64_t i = 1; i <= 100; ++i) {
    factors.Observe(0, 1, i);
    factors.Observe(1, 3, i);
  }
  const double then = factors.Expected(1, 100);
  EXPECT_GT(then, 2.5);
  EXPECT_LT(factors.Expected(1, 2000), then / 1.5);
}

TEST(SpeedFactors, WhatIsSeenLaterCorrectsWhatWasBlamedOnAnArm) {
  SpeedFactors factors(4, {});
  // The first observation: arm 0 takes twice as long. The machine or the arm?
  factors.Observe(0, 2, 1);
  const double blamed = factors.Expected(1, 1);
  EXPECT_GT(blamed, 1.05);
  EXPECT_LT(blamed, 1.9);
  // The other arms are as the table says: it was arm 0.
  for (uint64_t i = 2; i <= 40; ++i) {
    factors.Observe(1 + i % 2, 1, i);
  }
  EXPECT_NEAR(factors.Expected(3, 40), 1, 0.1);
  EXPECT_GT(factors.Expected(0, 40), 1.15);  // and is believed though it was used once
}

TEST(SpeedFactors, ExpectationsAgeWithoutSteps) {
  SpeedFactors factors(2, {});
  for (uint64_t i = 1; i <= 50; ++i) {
    factors.Observe(0, 3, i);
    factors.Observe(1, 1, i);
  }
  for (uint64_t now = 50; now < 400; ++now) {
    EXPECT_NEAR(factors.Expected(0, now + 1) / factors.Expected(0, now), 1, 0.01) << now;
    EXPECT_LE(factors.Expected(0, now + 1), factors.Expected(0, now) * 1.005) << now;
  }
}

}  // namespace
}  // namespace kvik::control
