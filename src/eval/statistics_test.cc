// SPDX-License-Identifier: Apache-2.0
#include "eval/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/rng.h"

namespace kvik::eval {
namespace {

PromptQuality Prompt(int64_t positions, int64_t agreeing) {
  PromptQuality p;
  p.positions = positions;
  p.agreeing = agreeing;
  p.sure_positions = positions / 2;
  p.sure_agreeing = agreeing / 2;
  p.kl_nats = 0.1 * static_cast<double>(positions);
  p.text_positions = 10;
  p.text_nll = 20;
  p.text_nll_raw = 10;
  p.prompt_values = p.values = 1000;
  p.bytes = 500;
  p.key_error = 30;
  p.value_error = 10;
  p.attention = {
      .score_difference = 1, .score_variance = 100, .output_difference = 4, .output_norm = 100};
  return p;
}

TEST(Statistics, ValuesAreRatiosOfSums) {
  std::vector<PromptQuality> prompts = {Prompt(10, 8), Prompt(30, 30)};
  CellQuality cell = Summarize(prompts, 1);
  EXPECT_EQ(cell.prompts, 2);
  EXPECT_EQ(cell.positions, 40);
  EXPECT_EQ(cell.sure_positions, 20);
  EXPECT_DOUBLE_EQ(cell.bits_per_value.value, 4);
  EXPECT_DOUBLE_EQ(cell.cr.value, 4);
  EXPECT_DOUBLE_EQ(cell.kl.value, 0.1);
  EXPECT_DOUBLE_EQ(cell.top1.value, 38.0 / 40);
  EXPECT_DOUBLE_EQ(cell.q.value, 19.0 / 20);
  EXPECT_DOUBLE_EQ(cell.ppl.value, std::exp(2.0));
  EXPECT_DOUBLE_EQ(cell.ppl_raw.value, std::exp(1.0));
  EXPECT_DOUBLE_EQ(cell.mse.value, 0.04);
  EXPECT_DOUBLE_EQ(cell.key_mse.value, 0.06);
  EXPECT_DOUBLE_EQ(cell.value_mse.value, 0.02);
  EXPECT_DOUBLE_EQ(cell.logit_error.value, 0.1);
  EXPECT_DOUBLE_EQ(cell.output_error.value, 0.2);
  EXPECT_EQ(cell.scored_prompts, 0);
  prompts[1].scored = 1;
  prompts[1].score = 0.5;
  prompts[1].score_raw = 1;
  cell = Summarize(prompts, 1);
  EXPECT_EQ(cell.scored_prompts, 1);
  EXPECT_DOUBLE_EQ(cell.score.value, 0.5);
}

TEST(Statistics, IntervalsComeFromTheSeedAlone) {
  std::vector<PromptQuality> prompts;
  for (int i = 0; i < 20; ++i) {
    prompts.push_back(Prompt(20, 10 + i % 10));
  }
  const CellQuality a = Summarize(prompts, 1);
  EXPECT_EQ(a.top1.low, Summarize(prompts, 1).top1.low);
  EXPECT_NE(std::pair(a.top1.low, a.top1.high),
            std::pair(Summarize(prompts, 2).top1.low, Summarize(prompts, 2).top1.high));
  EXPECT_LT(a.top1.low, a.top1.value);
  EXPECT_GT(a.top1.high, a.top1.value);
  EXPECT_EQ(a.cr.low, 4);
  EXPECT_EQ(a.cr.high, 4);
}

// Of 95 % intervals, about 95 % hold the truth: agreement is 0.8 for prompts of 64 positions whose
// own chance varies.
TEST(Statistics, IntervalsCoverTheTruthAsOftenAsTheySay) {
  int covered = 0;
  constexpr int kRounds = 300;
  for (int round = 0; round < kRounds; ++round) {
    Rng rng(7, static_cast<uint64_t>(round));
    std::vector<PromptQuality> prompts;
    for (int i = 0; i < 60; ++i) {
      const double chance = 0.7 + 0.2 * rng.Uniform();
      int64_t agreeing = 0;
      for (int j = 0; j < 64; ++j) {
        agreeing += rng.Uniform() < chance ? 1 : 0;
      }
      prompts.push_back(Prompt(64, agreeing));
    }
    const CellQuality cell = Summarize(prompts, 1, 200);
    covered += cell.top1.low <= 0.8 && 0.8 <= cell.top1.high ? 1 : 0;
  }
  EXPECT_GE(covered, kRounds * 90 / 100);
  EXPECT_LE(covered, kRounds * 98 / 100);
}

}  // namespace
}  // namespace kvik::eval
