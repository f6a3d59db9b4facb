// SPDX-License-Identifier: Apache-2.0
#include "kv/reuse_hazard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "base/rng.h"
#include "kv/reuse_class.h"

namespace kvik::kv {
namespace {

constexpr int64_t kSecondUs = 1'000'000;

// `uses` that return after an exponential time of this rate, seen to their end.
void Feed(ReuseHazard& hazard, int node, Rng& rng, int uses, double rate) {
  for (int i = 0; i < uses; ++i) {
    const double age_s = -std::log(1 - rng.Uniform()) / rate;
    hazard.AddWaiting(node, 0, age_s, 1);
    hazard.AddReturn(node, age_s, 1);
  }
}

TEST(ReuseHazard, FindsTheRateOfReturnsAtEveryAge) {
  ReuseHazard hazard({ReuseHazard::Node{}});
  hazard.AdvanceTime(0);
  Rng rng(1);
  Feed(hazard, 0, rng, 20000, 0.1);
  hazard.Rebuild(0, 10);
  for (int bin = 6; ReuseHazard::BinStartS(bin + 1) < 20; ++bin) {
    EXPECT_NEAR(hazard.Rate(0, bin), 0.1, 0.02) << "bin " << bin;
  }
}

TEST(ReuseHazard, WhatStillWaitsCountsAsNotReturnedUpToItsAgeOnly) {
  ReuseHazard hazard({ReuseHazard::Node{}});
  hazard.AdvanceTime(0);
  Rng rng(1);
  Feed(hazard, 0, rng, 10000, 0.1);
  for (int i = 0; i < 20000; ++i) {
    hazard.AddWaiting(0, 0, 4, 1);  // censored at 4 s
  }
  hazard.Rebuild(0, 10);
  const int young = ReuseHazard::BinOf(1);
  const int old = ReuseHazard::BinOf(12);
  EXPECT_NEAR(hazard.Rate(0, young), 0.1 / 3.1, 0.01);  // diluted by those seen not to return
  EXPECT_NEAR(hazard.Rate(0, old), 0.1, 0.02);          // not by what nobody saw
}

// With a constant rate h the gain is h / (h + 1 / H) at every age.
TEST(ReuseHazard, GainIsTheChanceOfAReturnDiscountedByItsDistance) {
  ReuseHazard hazard({ReuseHazard::Node{}});
  hazard.AdvanceTime(0);
  Rng rng(2);
  Feed(hazard, 0, rng, 50000, 0.1);
  hazard.Rebuild(0, 10);
  for (const double age_s : {0.05, 1.0, 5.0, 10.0}) {
    EXPECT_NEAR(hazard.Gain(0, age_s, ReuseHazard::BinOf(age_s)), 0.5, 0.06) << age_s;
  }
  hazard.Rebuild(0, 1);
  EXPECT_NEAR(hazard.Gain(0, 1, ReuseHazard::BinOf(1)), 0.1 / 1.1, 0.02);
}

TEST(ReuseHazard, AClassWithoutEvidenceIsLikeItsParentAndOneWithMuchIsNot) {
  ReuseHazard hazard(std::vector<ReuseHazard::Node>{{}, {0, 1.0}, {0, 1.0}, {0, 0.1}});
  hazard.AdvanceTime(0);
  Rng rng(3);
  Feed(hazard, 0, rng, 20000, 0.1);
  Feed(hazard, 1, rng, 20000, 1.0);
  for (const int node : {0, 1, 2, 3}) {
    hazard.Rebuild(node, 10);
  }
  const int bin = ReuseHazard::BinOf(1.5);
  EXPECT_NEAR(hazard.Rate(2, bin), hazard.Rate(0, bin), 1e-9);
  EXPECT_NEAR(hazard.Rate(3, bin), 0.1 * hazard.Rate(0, bin), 1e-9);
  EXPECT_NEAR(hazard.Rate(1, bin), 1.0, 0.1);
}

// Of 5000 uses that returned at rate 1 and, after 100,000 s with so many requests in them, 5000
// that returned at rate 0.1: the rate that is believed in.
double RateAfter(int requests) {
  ReuseHazard hazard({ReuseHazard::Node{}});
  hazard.AdvanceTime(0);
  Rng rng(4);
  Feed(hazard, 0, rng, 5000, 1.0);
  // Long enough that the weights are scaled down on the way.
  for (int i = 1; i <= 100; ++i) {
    for (int r = 0; r < requests / 100; ++r) {
      hazard.CountRequest();
    }
    hazard.AdvanceTime(i * 1000 * kSecondUs);
  }
  Feed(hazard, 0, rng, 5000, 0.1);
  hazard.Rebuild(0, 10);
  return hazard.Rate(0, ReuseHazard::BinOf(1.5));
}

TEST(ReuseHazard, OldEvidenceFades) { EXPECT_NEAR(RateAfter(100000), 0.1, 0.03); }

TEST(ReuseHazard, EvidenceDoesNotFadeFasterThanRequestsReplaceIt) {
  // Waiting: 5000 s in all at rate 1, of which little in this bin, and 50,000 s at rate 0.1.
  const double both = RateAfter(0);
  EXPECT_GT(both, 0.15);
  EXPECT_NEAR(RateAfter(100), both, 0.1 * both);
  EXPECT_LT(RateAfter(3000), 0.15);
}

TEST(ReuseHazard, BinsCoverAllAges) {
  EXPECT_EQ(ReuseHazard::BinOf(0), 0);
  EXPECT_EQ(ReuseHazard::BinOf(1e12), ReuseHazard::kNumBins - 1);
  EXPECT_GT(ReuseHazard::BinStartS(ReuseHazard::kNumBins - 1), 3600);
  for (int bin = 0; bin < ReuseHazard::kNumBins; ++bin) {
    EXPECT_EQ(ReuseHazard::BinOf(ReuseHazard::BinStartS(bin)), bin);
    EXPECT_EQ(ReuseHazard::BinOf(ReuseHazard::BinStartS(bin), bin), bin);
  }
}

TEST(ReuseClass, EveryRequestHasANodeOfItsOwnKind) {
  const auto nodes = ReuseClassNodes();
  const auto root_of = [&](int node) {
    int steps = 0;
    while (nodes[static_cast<size_t>(node)].parent != ReuseHazard::kNoParent) {
      node = nodes[static_cast<size_t>(node)].parent;
      ++steps;
    }
    EXPECT_LT(steps, 20);
    return node;
  };
  std::vector<int> seen;
  for (const int32_t turn : {0, 1, 2, 7, 8, 1000}) {
    for (const int32_t input : {0, 1023, 1024, 20000, 1 << 30}) {
      for (const bool tool : {false, true}) {
        for (const auto hint : {std::optional<bool>(), {true}, {false}}) {
          const RequestFacts facts{.prompt_tokens = input,
                                   .output_tokens = input / 4,
                                   .tool_call = tool,
                                   .will_continue = hint};
          const int tail = ReuseClassNode(facts, turn, BlockKind::kTail);
          const int head = ReuseClassNode(facts, turn, BlockKind::kHead);
          ASSERT_GE(std::min(tail, head), 0);
          ASSERT_LT(static_cast<size_t>(std::max(tail, head)), nodes.size());
          EXPECT_NE(root_of(tail), root_of(head));
          seen.push_back(tail);
        }
      }
    }
  }
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  // Turns 0 and 1, and 8 and later, are one each; so are prompts of 0 and 1023 tokens, but for
  // their outputs.
  EXPECT_EQ(seen.size(), 4U * 5U * 2U * 3U);
}

}  // namespace
}  // namespace kvik::kv
