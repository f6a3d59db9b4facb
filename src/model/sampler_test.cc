// SPDX-License-Identifier: Apache-2.0
#include "model/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "base/rng.h"

namespace kvik::model {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> RandomLogits(size_t size, Rng& rng, double spread = 4.0) {
  std::vector<float> logits(size);
  for (float& v : logits) {
    v = static_cast<float>((rng.Uniform() - 0.5) * 2 * spread);
  }
  return logits;
}

// The obvious way, in double: probability of every token under `params`, penalties left out.
std::vector<double> ReferenceProbabilities(const std::vector<float>& logits,
                                           const SamplingParams& params) {
  const size_t n = logits.size();
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  size_t kept = n;
  if (params.top_k > 0) {
    kept = std::min<size_t>(kept, static_cast<size_t>(params.top_k));
  }
  std::vector<double> p(n, 0.0);
  const double max = logits[order[0]];
  const auto normalise = [&] {
    const double total = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& v : p) {
      v /= total;
    }
  };
  for (size_t i = 0; i < kept; ++i) {
    p[order[i]] = std::exp((logits[order[i]] - max) / params.temperature);
  }
  normalise();
  if (params.top_p < 1.0F) {
    double sum = 0;
    for (size_t i = 0; i < kept; ++i) {
      if (sum >= params.top_p) {
        p[order[i]] = 0;
      }
      sum += p[order[i]];
    }
  }
  for (size_t i = 0; i < n; ++i) {
    if (p[i] < params.min_p * p[order[0]]) {
      p[i] = 0;
    }
  }
  normalise();
  return p;
}

TokenId Draw(Sampler& sampler, const std::vector<float>& logits, const SamplingParams& params,
             uint64_t seed, int64_t position) {
  return sampler.Sample(logits, params, PenaltyState(params, {}), {}, seed, position).token;
}

TEST(Sampler, GreedyTakesTheLowestIdAmongTies) {
  Sampler sampler(40);
  std::vector<float> logits(40, -1.0F);
  logits[7] = logits[23] = logits[39] = 2.0F;
  SamplingParams params;
  params.temperature = 0;
  EXPECT_EQ(Draw(sampler, logits, params, 1, 0), 7);
  logits[39] = 2.5F;
  EXPECT_EQ(Draw(sampler, logits, params, 1, 0), 39);
}

TEST(Sampler, NanAndInfinityAreHarmless) {
  for (const float temperature : {0.0F, 1.0F, 1e-30F}) {
    for (const float top_p : {1.0F, 0.5F}) {
      SamplingParams params;
      params.temperature = temperature;
      params.top_p = top_p;
      params.num_logprobs = 2;
      Sampler sampler(20);
      std::vector<float> logits(20, kNan);
      EXPECT_EQ(Draw(sampler, logits, params, 1, 0), 0);
      logits[13] = -3.0F;
      EXPECT_EQ(Draw(sampler, logits, params, 1, 0), 13);
      logits[4] = kInf;
      EXPECT_EQ(Draw(sampler, logits, params, 1, 0), 4);
      std::fill(logits.begin(), logits.end(), -kInf);
      const TokenId banned[] = {0, 1};
      const SampledToken token =
          sampler.Sample(logits, params, PenaltyState(params, {}), banned, 1, 0);
      EXPECT_EQ(token.token, 2);
    }
  }
}

// The frequency of every token follows the reference distribution: each count lies within five
// standard deviations, and tokens of probability zero never occur.
TEST(Sampler, DrawsFollowTheTruncatedDistribution) {
  struct Case {
    float temperature;
    int32_t top_k;
    float top_p;
    float min_p;
  };
  const Case cases[] = {{1.0F, 0, 1.0F, 0.0F},   {0.7F, 0, 1.0F, 0.0F},   {1.5F, 5, 1.0F, 0.0F},
                        {1.0F, 0, 0.6F, 0.0F},   {1.0F, 0, 1.0F, 0.2F},   {0.9F, 20, 0.8F, 0.05F},
                        {1.0F, 200, 1.0F, 0.0F}, {1.0F, -1, 0.999F, 0.0F}};
  Rng rng(3);
  for (const Case& c : cases) {
    SamplingParams params;
    params.temperature = c.temperature;
    params.top_k = c.top_k;
    params.top_p = c.top_p;
    params.min_p = c.min_p;
    const std::vector<float> logits = RandomLogits(300, rng);
    const std::vector<double> p = ReferenceProbabilities(logits, params);
    Sampler sampler(300);
    constexpr int kDraws = 20000;
    std::vector<int> counts(300);
    for (int i = 0; i < kDraws; ++i) {
      ++counts[static_cast<size_t>(Draw(sampler, logits, params, 99, i))];
    }
    for (size_t token = 0; token < p.size(); ++token) {
      const double expected = p[token] * kDraws;
      const double deviation = std::sqrt(expected * (1 - p[token]));
      ASSERT_NEAR(counts[token], expected, 5 * deviation + (p[token] > 0 ? 1 : 0))
          << "token " << token << " temperature " << c.temperature << " top_k " << c.top_k
          << " top_p " << c.top_p << " min_p " << c.min_p;
    }
  }
}

// Which tokens can be drawn at all is decided exactly as in the reference, also where the
// candidates exceed what one pass keeps.
TEST(Sampler, TruncationKeepsExactlyTheReferenceSet) {
  Rng rng(8);
  for (int round = 0; round < 60; ++round) {
    SamplingParams params;
    params.temperature = static_cast<float>(0.5 + rng.Uniform());
    params.top_k = static_cast<int32_t>(rng.Below(3) == 0 ? rng.Below(400) : 0);
    params.top_p = rng.Below(2) == 0 ? 1.0F : static_cast<float>(0.05 + 0.9 * rng.Uniform());
    params.min_p = rng.Below(3) == 0 ? static_cast<float>(0.3 * rng.Uniform()) : 0.0F;
    const std::vector<float> logits = RandomLogits(500, rng, round % 2 == 0 ? 0.1 : 3.0);
    const std::vector<double> p = ReferenceProbabilities(logits, params);
    Sampler sampler(500);
    for (int i = 0; i < 300; ++i) {
      ASSERT_GT(p[static_cast<size_t>(Draw(sampler, logits, params, 5, i))], 0.0)
          << "round " << round;
    }
  }
}

TEST(Sampler, ADrawDependsOnSeedAndPositionOnly) {
  Rng rng(4);
  const std::vector<float> logits = RandomLogits(100, rng, 1.0);
  SamplingParams params;
  Sampler sampler(100);
  std::vector<TokenId> forward;
  for (int i = 0; i < 50; ++i) {
    forward.push_back(Draw(sampler, logits, params, 77, i));
  }
  Sampler other(100);
  for (int i = 49; i >= 0; --i) {
    EXPECT_EQ(Draw(other, logits, params, 77, i), forward[static_cast<size_t>(i)]);
    (void)Draw(other, logits, params, 78, i);
  }
  EXPECT_GT(std::set<TokenId>(forward.begin(), forward.end()).size(), 20U);
  std::vector<TokenId> reseeded;
  for (int i = 0; i < 50; ++i) {
    reseeded.push_back(Draw(sampler, logits, params, 78, i));
  }
  EXPECT_NE(forward, reseeded);
}

TEST(Sampler, LogprobsAreThoseOfTheRawLogits) {
  Rng rng(6);
  for (const int32_t vocab : {1, 15, 16, 17, 1000}) {
    const std::vector<float> logits = RandomLogits(static_cast<size_t>(vocab), rng, 12.0);
    double sum = 0;
    for (const float v : logits) {
      sum += std::exp(static_cast<double>(v));
    }
    SamplingParams params;
    params.temperature = 0.3F;
    params.repetition_penalty = 1.7F;
    params.num_logprobs = std::min(vocab, 5);
    params.logit_bias = {{0, -5.0F}};
    Sampler sampler(vocab);
    const SampledToken result = sampler.Sample(logits, params, PenaltyState(params, {}), {}, 1, 2);
    EXPECT_NEAR(result.logprob, logits[static_cast<size_t>(result.token)] - std::log(sum), 2e-6);
    std::vector<float> sorted = logits;
    std::sort(sorted.rbegin(), sorted.rend());
    ASSERT_EQ(result.top.size(), static_cast<size_t>(params.num_logprobs));
    for (size_t i = 0; i < result.top.size(); ++i) {
      EXPECT_EQ(logits[static_cast<size_t>(result.top[i].token)], sorted[i]);
      EXPECT_NEAR(result.top[i].logprob, sorted[i] - std::log(sum), 2e-6);
    }
    const SampledToken scored = sampler.Score(logits, 0, 0);
    EXPECT_NEAR(scored.logprob, logits[0] - std::log(sum), 2e-6);
    EXPECT_TRUE(scored.top.empty());
  }
}

// Against the formulas, token by token: greedy choice after penalties, bias and bans.
TEST(Sampler, PenaltiesBiasAndBansFollowTheirFormulas) {
  Rng rng(12);
  for (int round = 0; round < 300; ++round) {
    constexpr int32_t kVocab = 30;
    const std::vector<float> logits = RandomLogits(kVocab, rng, 2.0);
    SamplingParams params;
    params.temperature = 0;
    params.repetition_penalty = rng.Below(2) == 0 ? 1.0F : static_cast<float>(0.5 + rng.Uniform());
    params.presence_penalty = static_cast<float>(rng.Uniform() * 2 - 1);
    params.frequency_penalty = static_cast<float>(rng.Uniform() - 0.5);
    std::vector<TokenId> prompt;
    std::vector<TokenId> output;
    for (int i = 0; i < 10; ++i) {
      prompt.push_back(static_cast<TokenId>(rng.Below(kVocab)));
      output.push_back(static_cast<TokenId>(rng.Below(kVocab)));
    }
    params.logit_bias = {{static_cast<TokenId>(rng.Below(kVocab)), 1.5F}};
    const TokenId banned[] = {static_cast<TokenId>(rng.Below(kVocab))};
    PenaltyState state(params, prompt);
    for (const TokenId token : output) {
      state.AddOutput(token);
    }
    TokenId best = -1;
    float best_value = -kInf;
    for (TokenId token = 0; token < kVocab; ++token) {
      float v = logits[static_cast<size_t>(token)];
      const auto n = std::count(output.begin(), output.end(), token);
      if (n > 0 || std::count(prompt.begin(), prompt.end(), token) > 0) {
        v = v > 0 ? v / params.repetition_penalty : v * params.repetition_penalty;
      }
      v -= params.frequency_penalty * static_cast<float>(n);
      v -= n > 0 ? params.presence_penalty : 0.0F;
      v += token == params.logit_bias[0].first ? 1.5F : 0.0F;
      if (token != banned[0] && v > best_value) {
        best = token;
        best_value = v;
      }
    }
    Sampler sampler(kVocab);
    EXPECT_EQ(sampler.Sample(logits, params, state, banned, 0, 0).token, best) << round;
  }
}

TEST(Sampler, ParametersOutOfRangeAreNamed) {
  const auto error = [](auto edit) {
    SamplingParams params;
    edit(params);
    const Result<void> valid = ValidateSamplingParams(params, 10);
    return valid ? std::string("valid") : valid.error().message;
  };
  EXPECT_EQ(error([](SamplingParams&) {}), "valid");
  EXPECT_THAT(error([](auto& p) { p.temperature = -1; }), HasSubstr("temperature"));
  EXPECT_THAT(error([](auto& p) { p.temperature = kNan; }), HasSubstr("temperature"));
  EXPECT_THAT(error([](auto& p) { p.top_k = -2; }), HasSubstr("top_k"));
  EXPECT_THAT(error([](auto& p) { p.top_p = 0; }), HasSubstr("top_p"));
  EXPECT_THAT(error([](auto& p) { p.min_p = 1.5F; }), HasSubstr("min_p"));
  EXPECT_THAT(error([](auto& p) { p.repetition_penalty = 0; }), HasSubstr("repetition_penalty"));
  EXPECT_THAT(error([](auto& p) { p.presence_penalty = 3; }), HasSubstr("presence_penalty"));
  EXPECT_THAT(error([](auto& p) { p.frequency_penalty = kInf; }), HasSubstr("frequency_penalty"));
  EXPECT_THAT(error([](auto& p) { p.num_logprobs = 11; }), HasSubstr("logprobs"));
  EXPECT_THAT(error([](auto& p) { p.logit_bias = {{10, 1.0F}}; }), HasSubstr("token 10"));
  EXPECT_THAT(error([](auto& p) { p.logit_bias = {{1, 101.0F}}; }), HasSubstr("logit_bias"));
}

}  // namespace
}  // namespace kvik::model
