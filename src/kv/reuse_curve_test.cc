// SPDX-License-Identifier: Apache-2.0
#include "kv/reuse_curve.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <vector>

#include "base/rng.h"

namespace kvik::kv {
namespace {

const ReuseCurve kCurve(0.5, 40, 600);

TEST(ReuseCurve, PiecesMeetAtTheLifespanWithTheReuseProbability) {
  for (const double p : {0.1, 0.3, 0.5, 0.9}) {
    for (const double r : {10.0, 40.0, 160.0}) {
      for (const double lifespan_s : {1.0, 60.0, 1578.0}) {
        const ReuseCurve curve(p, r, lifespan_s);
        EXPECT_NEAR(curve.F1(lifespan_s), p, 1e-12);
        EXPECT_NEAR(curve.F2(lifespan_s), p, 1e-12);
        EXPECT_EQ(curve.F(0), 1);
        for (const double share : {0.01, 0.5, 0.99}) {
          EXPECT_EQ(curve.F(share * lifespan_s), curve.F1(share * lifespan_s));
          EXPECT_EQ(curve.F((1 + share) * lifespan_s), curve.F2((1 + share) * lifespan_s));
        }
        EXPECT_NEAR(curve.ln_f2_start(), std::log(p) + r * curve.alpha() * lifespan_s, 1e-9);
      }
    }
  }
}

TEST(ReuseCurve, AfterTheLifespanItFallsBySlopeRatioTimesFaster) {
  const auto slope = [](double x_s) { return std::log(kCurve.F(x_s + 1) / kCurve.F(x_s)); };
  EXPECT_NEAR(slope(10), -kCurve.alpha(), 1e-12);
  EXPECT_NEAR(slope(598), -kCurve.alpha(), 1e-12);
  EXPECT_NEAR(slope(600), -40 * kCurve.alpha(), 1e-12);
  EXPECT_NEAR(slope(2000), -40 * kCurve.alpha(), 1e-9);
}

TEST(ReuseCurve, LambdaMovesWhereThePiecesMeet) {
  for (const double lifespan_s : {300.0, 599.0, 900.0, 1200.0}) {
    const double lambda = std::exp(kCurve.LnLambda(lifespan_s));
    EXPECT_NEAR(kCurve.F1(lifespan_s), lambda * kCurve.F2(lifespan_s), 1e-9) << lifespan_s;
  }
  EXPECT_EQ(kCurve.LnLambda(600), 0);
}

// A block: weight and the ages of its uses.
struct Block {
  double weight = 0;
  std::vector<double> ages_s{};
};

double Value(const Block& block, double shift_s, const std::function<double(double)>& f) {
  double sum = 0;
  for (const double age_s : block.ages_s) {
    sum += f(age_s + shift_s);
  }
  return block.weight * sum;
}

// Draws pairs of blocks until waiting reverses which one is worth more; prints them.
bool FindsReversal(const char* name, const std::function<double(double)>& f) {
  constexpr uint64_t kSeed = 5;
  Rng rng(kSeed);
  const auto draw = [&] {
    Block block{.weight = 1 + 9 * rng.Uniform()};
    for (uint64_t i = 0; i <= rng.Below(4); ++i) {
      block.ages_s.push_back(1 + 1000 * rng.Uniform());
    }
    return block;
  };
  for (int i = 0; i < 100'000; ++i) {
    const Block a = draw();
    const Block b = draw();
    const double shift_s = 1500 * rng.Uniform();
    const double now = Value(a, 0, f) - Value(b, 0, f);
    const double later = Value(a, shift_s, f) - Value(b, shift_s, f);
    // Equal up to rounding is no reversal.
    const bool clear =
        std::abs(now) > 1e-9 * Value(a, 0, f) && std::abs(later) > 1e-9 * Value(a, shift_s, f);
    if (clear && (now > 0) != (later > 0)) {
      const auto print = [&](const char* label, const Block& block) {
        std::printf("  %s: weight %.3f, used", label, block.weight);
        for (const double age_s : block.ages_s) {
          std::printf(" %.1f", age_s);
        }
        std::printf(" s ago: worth %.4g, and %.4g in %.1f s\n", Value(block, 0, f),
                    Value(block, shift_s, f), shift_s);
      };
      std::printf("%s, seed %llu, draw %d: the order of two blocks is reversed by waiting\n", name,
                  static_cast<unsigned long long>(kSeed), i);
      print("a", a);
      print("b", b);
      return true;
    }
  }
  return false;
}

TEST(ReuseCurve, WaitingNeverReversesTheOrderByOnePiece) {
  EXPECT_FALSE(FindsReversal("f1", [](double x_s) { return kCurve.F1(x_s); }));
  EXPECT_FALSE(FindsReversal("f2", [](double x_s) { return kCurve.F2(x_s); }));
}

TEST(ReuseCurve, WaitingReversesTheOrderByOneOverAgeAndByTheWholeCurve) {
  EXPECT_TRUE(FindsReversal("1/x", [](double x_s) { return 1 / x_s; }));
  EXPECT_TRUE(FindsReversal("min(f1, f2)", [](double x_s) { return kCurve.F(x_s); }));
}

TEST(DecayedUses, EqualTheSumOverAllUses) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    std::vector<int64_t> times_us = {static_cast<int64_t>(rng.Below(1'000'000'000))};
    DecayedUses uses = DecayedUses::Once(times_us[0]);
    for (int i = 0; i < 30; ++i) {
      times_us.push_back(times_us.back() + static_cast<int64_t>(rng.Below(100'000'000)));
      uses.Use(kCurve, times_us.back());
    }
    const auto age_s = [&](int64_t t) { return static_cast<double>(uses.last_us - t) * 1e-6; };
    double sum1 = 0;
    double sum2 = 0;
    for (const int64_t t : times_us) {
      sum1 += std::exp(-kCurve.alpha() * age_s(t));
      sum2 += std::exp(-kCurve.steep_alpha() * age_s(t));
    }
    EXPECT_NEAR(uses.ln_sum1, std::log(sum1), 1e-12);
    EXPECT_NEAR(uses.ln_sum2, std::log(sum2), 1e-12);
  }
}

}  // namespace
}  // namespace kvik::kv
