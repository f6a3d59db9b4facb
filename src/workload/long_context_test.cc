// SPDX-License-Identifier: Apache-2.0
#include "workload/long_context.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "workload/distributions.h"

namespace kvik::workload {
namespace {

struct Moments {
  double mean = 0;
  double deviation = 0;
};
Moments Measure(const std::function<double()>& draw, int n) {
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < n; ++i) {
    const double x = draw();
    sum += x;
    squares += x * x;
  }
  const double mean = sum / n;
  return {mean, std::sqrt(squares / n - mean * mean)};
}

TEST(Distributions, HaveTheMomentsTheyPromise) {
  for (const uint64_t seed : {1, 2, 3}) {
    Rng rng(seed);
    const Moments normal = Measure([&] { return DrawNormal(rng); }, 40000);
    EXPECT_NEAR(normal.mean, 0, 0.02) << "seed " << seed;
    EXPECT_NEAR(normal.deviation, 1, 0.02) << "seed " << seed;
    const Moments log_normal = Measure([&] { return DrawLogNormal(rng, 50, 0.6); }, 40000);
    EXPECT_NEAR(log_normal.mean, 50, 1) << "seed " << seed;
    EXPECT_NEAR(log_normal.deviation, 50 * std::sqrt(std::exp(0.36) - 1), 2) << "seed " << seed;
    for (const double cv : {0.25, 1.0, 2.0}) {
      const Moments gamma = Measure([&] { return DrawGamma(rng, 3, cv); }, 40000);
      EXPECT_NEAR(gamma.mean, 3, 0.03 * (1 + 2 * cv)) << "seed " << seed << " cv " << cv;
      EXPECT_NEAR(gamma.deviation / gamma.mean, cv, 0.05 * cv) << "seed " << seed;
    }
    EXPECT_EQ(DrawGamma(rng, 3, 0), 3);
  }
}

TEST(LongContext, NamesGiveLengthsAndRatio) {
  EXPECT_EQ(LongContextNamed("longbench:10")->gap_ratio, 10);
  EXPECT_EQ(LongContextNamed("loogle:5")->prompt_tokens, 24400);
  for (const char* bad : {"longbench", "longbench:", "longbench:0", "longbench:5x", "other:5"}) {
    EXPECT_FALSE(LongContextNamed(bad)) << bad;
  }
}

TEST(LongContext, MeansAreTheOnesAskedFor) {
  LongContextOptions options = *LongContextNamed("loogle:5");
  options.requests = 5000;
  options.seed = 3;
  const LongContextLoad load = MakeLongContext(options);
  ASSERT_EQ(load.sessions.size(), 1000U);
  double prompt = 0;
  double output = 0;
  double gap = 0;
  for (const LongContextSession& session : load.sessions) {
    ASSERT_EQ(session.turns.size(), 5U);
    for (size_t i = 0; i < 5; ++i) {
      const LongContextTurn& turn = session.turns[i];
      prompt += turn.prompt_tokens / 5000.0;
      output += turn.output_tokens / 5000.0;
      gap += turn.gap_s / 4000.0;
      EXPECT_LE(turn.prompt_tokens + turn.output_tokens, options.context_tokens);
      if (i > 0) {
        EXPECT_EQ(turn.prompt_tokens,
                  session.turns[i - 1].prompt_tokens + session.turns[i - 1].output_tokens + 64);
      }
    }
  }
  EXPECT_NEAR(prompt, 24400, 1200);
  EXPECT_NEAR(output, 700, 25);
  EXPECT_NEAR(load.sessions.back().start_s / 999, 250, 5) << "turns over requests a second";
  EXPECT_NEAR(gap, 1250, 20) << "five times the time between sessions";
}

TEST(LongContext, ScaleDividesLengthsAndNotTimes) {
  LongContextOptions options = *LongContextNamed("longbench:5");
  options.scale = 8;
  const LongContextLoad scaled = MakeLongContext(options);
  options.scale = 1;
  const LongContextLoad full = MakeLongContext(options);
  EXPECT_EQ(scaled.shared_tokens, 64);
  for (size_t i = 0; i < full.sessions.size(); ++i) {
    EXPECT_EQ(scaled.sessions[i].start_s, full.sessions[i].start_s);
    for (size_t t = 0; t < 5; ++t) {
      EXPECT_NEAR(scaled.sessions[i].turns[t].prompt_tokens,
                  full.sessions[i].turns[t].prompt_tokens / 8.0, 8);
      EXPECT_LE(
          scaled.sessions[i].turns[t].prompt_tokens + scaled.sessions[i].turns[t].output_tokens,
          8192);
    }
  }
}

}  // namespace
}  // namespace kvik::workload
