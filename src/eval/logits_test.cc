// SPDX-License-Identifier: Apache-2.0
#include "eval/logits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"

namespace kvik::eval {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Logits, TheLargestIsTheFirstOfEquals) {
  EXPECT_EQ(Argmax(std::vector<float>{1, 3, 3, 2}), 1);
  EXPECT_EQ(Argmax(std::vector<float>{kNaN, -5, kNaN}), 1);
  EXPECT_EQ(Argmax(std::vector<float>{kNaN, kNaN}), -1);
  EXPECT_EQ(Argmax({}), -1);
  Rng rng(5);
  for (size_t n = 1; n < 70; ++n) {  // of few different values, so that many are equal
    std::vector<float> logits(n);
    TokenId best = -1;
    for (size_t i = 0; i < n; ++i) {
      const auto value = static_cast<float>(rng.Range(0, 6));
      logits[i] = value == 0 ? kNaN : value;
      if (value > 0 && (best < 0 || value > logits[static_cast<size_t>(best)])) {
        best = static_cast<TokenId>(i);
      }
    }
    EXPECT_EQ(Argmax(logits), best) << n << " logits, seed 5";
  }
}

// Against the definition in long double.
TEST(Logits, DivergenceAndLikelihoodAreWhatTheyAreDefinedToBe) {
  Rng rng(1);
  for (int round = 0; round < 20; ++round) {
    std::vector<float> raw(50), coded(50);
    for (size_t i = 0; i < raw.size(); ++i) {
      raw[i] = static_cast<float>(rng.Uniform() * 20 - 10);
      coded[i] = raw[i] + static_cast<float>(rng.Uniform() - 0.5);
    }
    const auto probabilities = [](const std::vector<float>& logits) {
      long double sum = 0;
      std::vector<long double> p;
      for (const float logit : logits) {
        p.push_back(std::exp(static_cast<long double>(logit)));
        sum += p.back();
      }
      for (long double& value : p) {
        value /= sum;
      }
      return p;
    };
    const auto p = probabilities(raw);
    const auto q = probabilities(coded);
    long double kl = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      kl += p[i] * std::log(p[i] / q[i]);
    }
    std::vector<float> kept(raw.size());
    const RawRow row = DescribeRow(raw, kept);
    const RowComparison result = CompareRow(raw, kept, row, coded, 17);
    EXPECT_NEAR(result.kl_nats, static_cast<double>(kl), 1e-6);
    EXPECT_NEAR(result.nll_nats, -static_cast<double>(std::log(q[17])), 1e-9);
    EXPECT_NEAR(RowNll(coded, 17), result.nll_nats, 1e-12);
    EXPECT_EQ(result.top, Argmax(coded));
    EXPECT_EQ(row.top, Argmax(raw));
    EXPECT_LT(CompareRow(raw, kept, row, raw, 0).kl_nats, 1e-6);
  }
}

TEST(Logits, TheMarginIsBetweenTheTwoLargest) {
  std::vector<float> p(4);
  const RawRow row = DescribeRow(std::vector<float>{0.5F, -1, 2, 1.25F}, p);
  EXPECT_EQ(row.top, 2);
  EXPECT_EQ(row.margin, 0.75F);
  EXPECT_NEAR(p[0] + p[1] + p[2] + p[3], 1, 1e-6);
}

TEST(Logits, WhatIsNoNumberIsTheWorst) {
  const std::vector<float> raw = {1, 2, 3};
  std::vector<float> p(3);
  const RawRow row = DescribeRow(raw, p);
  for (const std::vector<float>& coded :
       {std::vector<float>{kNaN, kNaN, kNaN}, {1, kNaN, 2}, {kInf, 0, 0}, {0, 0, -kInf}}) {
    const RowComparison result = CompareRow(raw, p, row, coded, 2);
    EXPECT_EQ(result.kl_nats, kWorstNats);
    EXPECT_LE(result.nll_nats, kWorstNats);
  }
}

}  // namespace
}  // namespace kvik::eval
