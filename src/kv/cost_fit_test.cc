// SPDX-License-Identifier: Apache-2.0
#include "kv/cost_fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/rng.h"

namespace kvik::kv {
namespace {

constexpr CostModel kTrue{.step_us = 900,
                          .token_us = 260,
                          .cached_token_us = 0.8,
                          .segment_us = 40,
                          .square_us = 0.02,
                          .decode_us = 1500,
                          .decode_kv_token_us = 0.6};

std::vector<CostSample> Samples(const CostModel& model, double noise, int count, uint64_t seed) {
  Rng rng(seed);
  std::vector<CostSample> samples;
  for (int i = 0; i < count; ++i) {
    CostSample sample;
    for (uint64_t n = 1 + rng.Below(3); n > 0; --n) {
      sample.features.AddSegment(static_cast<int32_t>(rng.Below(6000)),
                                 static_cast<int32_t>(16 + rng.Below(497)));
    }
    for (uint64_t n = rng.Below(5); n > 0; --n) {
      sample.features.AddDecode(static_cast<int32_t>(rng.Below(6000)));
    }
    sample.us = model.StepUs(sample.features) * (1 + noise * (2 * rng.Uniform() - 1));
    samples.push_back(sample);
  }
  return samples;
}

TEST(CostFit, FindsTheModelThatMadeTheSamples) {
  const auto fit = FitCostModel(Samples(kTrue, 0, 64, 1));
  ASSERT_TRUE(fit.has_value()) << fit.error().message;
  EXPECT_GT(fit->r_squared, 1 - 1e-9);
  EXPECT_NEAR(fit->model.step_us, kTrue.step_us, 1);
  EXPECT_NEAR(fit->model.token_us, kTrue.token_us, 1e-2);
  EXPECT_NEAR(fit->model.cached_token_us, kTrue.cached_token_us, 1e-3);
  EXPECT_NEAR(fit->model.segment_us, kTrue.segment_us, 1);
  EXPECT_NEAR(fit->model.square_us, kTrue.square_us, 1e-5);
  EXPECT_NEAR(fit->model.decode_us, kTrue.decode_us, 1);
  EXPECT_NEAR(fit->model.decode_kv_token_us, kTrue.decode_kv_token_us, 1e-3);
}

TEST(CostFit, PredictsHeldOutStepsUnderNoise) {
  const auto fit = FitCostModel(Samples(kTrue, 0.03, 96, 2));
  ASSERT_TRUE(fit.has_value()) << fit.error().message;
  EXPECT_GT(Judge(fit->model, Samples(kTrue, 0, 1000, 3)).r_squared, 0.999);
}

TEST(CostFit, TermsThatDoNotOccurOrComeOutNegativeAreZero) {
  std::vector<CostSample> samples;
  for (int i = 0; i < 40; ++i) {
    CostSample sample;
    sample.features.AddSegment(150 * (i % 8), 32 + 13 * (i % 5));
    sample.us = kTrue.StepUs(sample.features) - 500;  // step and segment cannot be told apart
    samples.push_back(sample);
  }
  const auto fit = FitCostModel(samples);
  ASSERT_TRUE(fit.has_value()) << fit.error().message;
  EXPECT_EQ(fit->model.decode_us, 0);
  EXPECT_EQ(fit->model.decode_kv_token_us, 0);
  EXPECT_GE(fit->model.step_us, 0);
  EXPECT_GE(fit->model.segment_us, 0);
  EXPECT_GT(fit->r_squared, 0.999);
}

TEST(CostFit, RefusesWhatExplainsNothing) {
  auto samples = Samples(kTrue, 0, 64, 4);
  Rng rng(5);
  for (CostSample& sample : samples) {
    sample.us = rng.Uniform() * 1e6;
  }
  const auto fit = FitCostModel(samples);
  ASSERT_FALSE(fit.has_value());
  EXPECT_NE(fit.error().message.find("variance"), std::string::npos);
}

TEST(CostFit, RefusesTooFewAndImpossibleSamples) {
  EXPECT_FALSE(FitCostModel(Samples(kTrue, 0, 15, 6)).has_value());
  auto samples = Samples(kTrue, 0, 40, 7);
  samples[3].us = std::nan("");
  EXPECT_FALSE(FitCostModel(samples).has_value());
}

TEST(CostFit, RefusesAMachineOnWhichPositionCostsNothing) {
  CostModel flat = kTrue;
  flat.square_us = 0;
  flat.cached_token_us = 0;
  EXPECT_FALSE(FitCostModel(Samples(flat, 0, 64, 8)).has_value());
}

// Costs of blocks add up to the cost of the prompt's part that depends on position.
TEST(CostModel, BlocksAddUp) {
  double sum = 0;
  for (int32_t block = 0; block < 100; ++block) {
    sum += kTrue.RecomputeUs(16 * block, 16);
  }
  EXPECT_NEAR(sum, kTrue.RecomputeUs(0, 1600), 1e-6 * sum);
}

}  // namespace
}  // namespace kvik::kv
