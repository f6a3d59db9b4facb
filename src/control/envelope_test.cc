// SPDX-License-Identifier: Apache-2.0
#include "control/envelope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "base/rng.h"

namespace kvik::control {
namespace {

double Least(const std::vector<ArmCurve>& curves, double x) {
  double least = std::numeric_limits<double>::infinity();
  for (const ArmCurve& curve : curves) {
    least = std::min(least, curve.curve.At(x));
  }
  return least;
}

ArmCurve Straight(int32_t arm, double at_zero, double slope) {
  return {arm, {{at_zero, slope}, {at_zero, slope}}};
}

TEST(Envelope, BreakpointsAreIntersectionsOfNeighboursNotBreakEvensWithRaw) {
  // Raw, a fast small saving, a slow large one. The two profiles break even with raw at x = 2 and
  // x = 30 / 8, and with each other at x = 20 / 3.
  const Envelope envelope(
      std::vector<ArmCurve>{Straight(0, 0, 10), Straight(1, 10, 5), Straight(2, 30, 2)});
  ASSERT_EQ(envelope.pieces().size(), 3U);
  EXPECT_EQ(envelope.pieces()[0].arm, 0);
  EXPECT_EQ(envelope.pieces()[0].x_begin, 0);
  EXPECT_EQ(envelope.pieces()[1].arm, 1);
  EXPECT_NEAR(envelope.pieces()[1].x_begin, 2, 1e-12);
  EXPECT_EQ(envelope.pieces()[2].arm, 2);
  EXPECT_NEAR(envelope.pieces()[2].x_begin, 20.0 / 3, 1e-12);
  EXPECT_EQ(envelope.Find(0), 0U);
  EXPECT_EQ(envelope.Find(5), 1U);
  EXPECT_EQ(envelope.Find(1e9), 2U);
}

TEST(Envelope, WhatIsNeverFastestIsNotOnIt) {
  const Envelope envelope(
      std::vector<ArmCurve>{Straight(0, 0, 10), Straight(1, 25, 6), Straight(2, 30, 2)});
  ASSERT_EQ(envelope.pieces().size(), 2U);
  EXPECT_EQ(envelope.pieces()[1].arm, 2);
}

TEST(Envelope, AnArmMayComeBackWhenItsWireBecomesTheSlowestStage) {
  // Arm 0 is limited by its stages up to x = 10; arm 1 is a line that crosses it twice.
  const std::vector<ArmCurve> curves = {{0, {{10, 0}, {-40, 5}}}, Straight(1, 8, 0.5)};
  const Envelope envelope(curves);
  ASSERT_EQ(envelope.pieces().size(), 3U);
  EXPECT_EQ(envelope.pieces()[0].arm, 1);
  EXPECT_NEAR(envelope.pieces()[1].x_begin, 4, 1e-12);
  EXPECT_EQ(envelope.pieces()[1].arm, 0);
  EXPECT_NEAR(envelope.pieces()[2].x_begin, 48 / 4.5, 1e-12);
}

// For any arms and any x, the piece that holds x is of an arm that is as fast as the fastest; and
// where two pieces meet both arms are equally fast.
TEST(Envelope, IsTheLeastOfAllArmsEverywhere) {
  const uint64_t seed = 20;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  for (int round = 0; round < 400; ++round) {
    std::vector<ArmCurve> curves;
    const auto n = static_cast<int32_t>(rng.Range(1, 20));
    const bool serial = round % 2 == 0;
    const bool coarse = round % 5 == 0;  // many ties
    for (int32_t arm = 0; arm < n; ++arm) {
      const auto value = [&](double scale) {
        return coarse ? scale * static_cast<double>(rng.Below(4)) / 3 : scale * rng.Uniform();
      };
      const ArmCost cost{.wire_bytes = arm == 0 ? 1 : 0.05 + value(0.9),
                         .encode_fixed_us = arm == 0 ? 0 : value(500),
                         .decode_fixed_us = arm == 0 ? 0 : value(500),
                         .encode_frame_us = arm == 0 ? 0 : value(20),
                         .decode_frame_us = arm == 0 ? 0 : value(20),
                         .encode_us_per_byte = arm == 0 ? 0 : value(0.01),
                         .decode_us_per_byte = arm == 0 ? 0 : value(0.01)};
      curves.push_back(
          {arm, CurveOf(cost, rng.Below(2) == 0 ? Form::kHandOver : Form::kPoolRead,
                        serial ? Overlap::kSerial : Overlap::kPipelined,
                        static_cast<double>(rng.Range(1, 40)), 3e6, round % 3 == 0 ? 2e4 : 0)});
    }
    const Envelope envelope(curves);
    const auto& pieces = envelope.pieces();
    const auto at = [&](int32_t arm, double x) {
      return curves[static_cast<size_t>(arm)].curve.At(x);
    };
    ASSERT_EQ(pieces.front().x_begin, 0);
    for (size_t i = 1; i < pieces.size(); ++i) {
      const double x = pieces[i].x_begin;
      ASSERT_LT(pieces[i - 1].x_begin, x);
      ASSERT_NE(pieces[i - 1].arm, pieces[i].arm);
      const double scale = 1e-9 * (1 + std::abs(Least(curves, x)));
      ASSERT_NEAR(at(pieces[i - 1].arm, x), at(pieces[i].arm, x), scale) << "round " << round;
    }
    for (int k = 0; k < 200; ++k) {
      const double x = k == 0 ? 0 : 0.2 * std::pow(rng.Uniform(), 4);
      const size_t found = envelope.Find(x);
      ASSERT_LE(pieces[found].x_begin, x);
      ASSERT_TRUE(found + 1 == pieces.size() || x < pieces[found + 1].x_begin);
      const double least = Least(curves, x);
      ASSERT_NEAR(at(pieces[found].arm, x), least, 1e-9 * (1 + std::abs(least)))
          << "round " << round << " x " << x;
    }
  }
}

}  // namespace
}  // namespace kvik::control
