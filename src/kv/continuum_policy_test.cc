// SPDX-License-Identifier: Apache-2.0
#include "kv/continuum_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/rng.h"
#include "kv/hint_policy.h"
#include "kv/testing/toy_cache.h"

namespace kvik::kv {
namespace {

using Blocks = std::vector<BlockId>;
constexpr int64_t kSecond = 1'000'000;

std::unique_ptr<EvictionPolicy> Lru(int32_t num_blocks) {
  return MakeEvictionPolicy({.name = "lru", .num_blocks = num_blocks}).value();
}

void Track(EvictionPolicy& policy, BlockId first, int32_t count) {
  for (int32_t i = 0; i < count; ++i) {
    policy.Track(
        {.block = first + i, .first_pos = i * 16, .content = static_cast<uint64_t>(first + i) + 1});
  }
}

// Deepest first.
Blocks Deepest(BlockId first, int32_t count) {
  Blocks blocks;
  for (int32_t i = count; i > 0; --i) {
    blocks.push_back(first + i - 1);
  }
  return blocks;
}

// A request with blocks of its own that ends at `now_us`.
void Serve(EvictionPolicy& policy, BlockId first, int32_t count, int64_t now_us,
           const RequestFacts& facts) {
  Track(policy, first, count);
  policy.Release(Deepest(first, count), {now_us, facts});
}

void Return(EvictionPolicy& policy, BlockId first, int32_t count, int64_t now_us,
            const RequestFacts& facts) {
  Blocks blocks = Deepest(first, count);
  std::reverse(blocks.begin(), blocks.end());
  policy.Hit(blocks, {now_us, facts});
  policy.Touch(blocks, {now_us, facts});
  policy.Missed({}, {now_us, facts});
}

TEST(ContinuumPolicy, PinsWhatCallsAToolUntilItsTimeIsOver) {
  ContinuumPolicy policy(Lru(20), {.num_blocks = 20});
  EXPECT_EQ(policy.name(), "lru+continuum");
  Serve(policy, 0, 3, 0, {.request = 1, .tool_call = true});
  Serve(policy, 3, 3, 1, {.request = 2});
  EXPECT_EQ(policy.stats().evictable, 6);
  EXPECT_EQ(policy.stats().pinned, 3);
  EXPECT_EQ(policy.SelectVictims(1, 2), (Blocks{5}));
  const auto ttl_us = static_cast<int64_t>(DurationHistory::kFirstGuessS * 1e6);
  policy.Tick(ttl_us - 1);
  EXPECT_EQ(policy.stats().pinned, 3);
  policy.Tick(ttl_us);
  EXPECT_EQ(policy.stats().pinned, 0);
  EXPECT_EQ(policy.stats().evictable, 5);
  EXPECT_EQ(policy.SelectVictims(5, ttl_us), (Blocks{4, 3, 2, 1, 0}));
}

TEST(ContinuumPolicy, APinnedBlockGoesWhenNothingElseIsLeftTheSoonestExpiryFirst) {
  ContinuumPolicy policy(Lru(20), {.num_blocks = 20});
  Serve(policy, 0, 2, 5, {.request = 1, .tool_call = true});
  Serve(policy, 2, 2, 6, {.request = 2, .tool_call = true});
  Serve(policy, 4, 1, 7, {.request = 3});
  EXPECT_EQ(policy.SelectVictims(4, 8), (Blocks{4, 1, 0, 3}));
  EXPECT_EQ(policy.stats().evictable, 1);
  EXPECT_EQ(policy.stats().pinned, 1);
  EXPECT_EQ(policy.stats().evicted, 4);
}

TEST(ContinuumPolicy, PinsNoMoreThanItsShare) {
  ContinuumPolicy policy(Lru(20), {.num_blocks = 20});
  Serve(policy, 0, 6, 0, {.request = 1, .tool_call = true});
  Serve(policy, 6, 5, 1, {.request = 2, .tool_call = true});  // 11 of 20
  EXPECT_EQ(policy.stats().pinned, 6);
  Serve(policy, 11, 4, 2, {.request = 3, .tool_call = true});
  EXPECT_EQ(policy.stats().pinned, 10);
  EXPECT_EQ(policy.SelectVictims(5, 3), Deepest(6, 5));
}

TEST(ContinuumPolicy, NeitherPinsWhatEndsNorWhatCallsNoTool) {
  ContinuumPolicy policy(Lru(20), {.num_blocks = 20});
  Serve(policy, 0, 2, 0, {.request = 1, .tool_call = true, .will_continue = false});
  Serve(policy, 2, 2, 0, {.request = 2});
  EXPECT_EQ(policy.stats().pinned, 0);
}

TEST(ContinuumPolicy, LearnsHowLongEachToolTakes) {
  ContinuumPolicy policy(Lru(20), {.num_blocks = 20});
  int64_t now_us = 0;
  // 40 calls, 20 each of a tool of 1 .. 2 s and one of 100 .. 200 s. The even ones name a session.
  for (uint64_t i = 0; i < 40; ++i) {
    const bool slow = i % 4 >= 2;
    const uint64_t session = i % 2 == 0 ? i + 1 : 0;
    const RequestFacts call{
        .request = i, .session = session, .tool_call = true, .tool = slow ? 7U : 5U};
    Serve(policy, 0, 3, now_us, call);
    now_us += (slow ? 100 : 1) * (kSecond + static_cast<int64_t>(i % 20) * kSecond / 20);
    policy.Tick(now_us);
    if (i % 8 == 0) {  // gone when its session comes back
      EXPECT_EQ(policy.SelectVictims(3, now_us).size(), 3U);
      policy.Hit({}, {now_us, {.request = i, .session = session}});
      policy.Missed(std::vector<uint64_t>{1, 2, 3}, {now_us, {.request = i, .session = session}});
    } else if (i % 8 == 1) {  // and without a name
      EXPECT_EQ(policy.SelectVictims(3, now_us).size(), 3U);
      policy.Hit({}, {now_us, {.request = i}});
      policy.Missed(std::vector<uint64_t>{1, 2, 3}, {now_us, {.request = i}});
    } else {
      Return(policy, 0, 3, now_us, {.request = i, .session = session});
      for (BlockId block = 0; block < 3; ++block) {
        policy.Forget(block);
      }
    }
  }
  EXPECT_EQ(policy.durations().num_samples(), 40);
  EXPECT_NEAR(static_cast<double>(policy.durations().ExpectedUs(5)) * 1e-6, 1.9, 0.2);
  EXPECT_NEAR(static_cast<double>(policy.durations().ExpectedUs(7)) * 1e-6, 190, 15);
  // One never seen takes as long as any.
  EXPECT_NEAR(static_cast<double>(policy.durations().ExpectedUs(9)) * 1e-6, 180, 15);

  const std::string state = policy.SaveState();
  ContinuumPolicy restored(Lru(20), {.num_blocks = 20});
  ASSERT_TRUE(restored.RestoreState(state).has_value());
  EXPECT_EQ(restored.durations().ExpectedUs(5), policy.durations().ExpectedUs(5));
  EXPECT_FALSE(restored.RestoreState(R"({"kvik_continuum":2})").has_value());
  EXPECT_FALSE(restored.RestoreState(R"({"kvik_continuum":1,"durations":3,"below":null})"));
  EXPECT_FALSE(
      restored.RestoreState(R"({"kvik_continuum":1,"durations":{},"below":null})").has_value());
  EXPECT_EQ(restored.SaveState(), state);
}

TEST(ContinuumPolicy, TakesTheStateOfThePolicyBelowAlone) {
  const PolicyOptions asym{.name = "asym", .num_blocks = 60};
  const auto teacher = MakeEvictionPolicy(asym).value();
  ToyCache lessons({.seed = 4}, {teacher.get()});
  for (int step = 0; step < 1000; ++step) {
    ASSERT_NO_FATAL_FAILURE(lessons.Step());
  }
  ContinuumPolicy policy(MakeEvictionPolicy(asym).value(), asym);
  ASSERT_TRUE(policy.RestoreState(teacher->SaveState()).has_value());
  EXPECT_EQ(policy.inner().SaveState(), teacher->SaveState());
}

TEST(ContinuumPolicy, HoldsForTheReturnAndForNobodyElse) {
  const auto policy =
      MakeEvictionPolicy({.name = "lru+continuum", .obey_clients = true, .num_blocks = 20}).value();
  Serve(*policy, 0, 4, 0, {.request = 1, .session = 5, .tool_call = true});
  EXPECT_TRUE(policy->HoldsFor(Blocks{0, 1, 2, 3}, 0));
  EXPECT_TRUE(policy->HoldsFor(Blocks{0, 1, 2, kNoBlock}, 0)) << "the answer's end is spelled anew";
  EXPECT_FALSE(policy->HoldsFor(Blocks{0}, 0)) << "a common beginning";
  EXPECT_FALSE(policy->HoldsFor({}, 0));
  EXPECT_TRUE(policy->HoldsFor({}, 5)) << "the session";
  EXPECT_FALSE(policy->HoldsFor({}, 6));
  policy->Tick(11 * kSecond);
  EXPECT_FALSE(policy->HoldsFor(Blocks{0, 1, 2, 3}, 5)) << "not pinned any more";
}

TEST(HintPolicy, WhatEndsGoesFirstUnlessOthersUseIt) {
  HintPolicy policy(Lru(20), {.num_blocks = 20}, false);
  policy.Hit({}, {0, {.request = 9, .session = 9, .will_continue = true}});
  Serve(policy, 0, 2, 0, {.request = 1, .session = 1});
  Return(policy, 0, 1, 1, {.request = 2, .session = 2});  // shares block 0
  Track(policy, 2, 2);
  policy.Release(Blocks{3, 2, 0}, {2, {.request = 2, .session = 2, .will_continue = false}});
  EXPECT_EQ(policy.SelectVictims(4, 3), (Blocks{3, 2, 1, 0}));
}

TEST(HintPolicy, ItsOwnEarlierTurnIsNotAnother) {
  HintPolicy policy(Lru(20), {.num_blocks = 20}, false);
  policy.Hit({}, {0, {.request = 9, .session = 9, .will_continue = true}});
  Serve(policy, 4, 2, 0, {.request = 1, .session = 2});
  Serve(policy, 0, 2, 0, {.request = 1, .session = 1});
  Return(policy, 0, 2, 1, {.request = 2, .session = 1});
  policy.Release(Blocks{1, 0}, {2, {.request = 2, .session = 1, .will_continue = false}});
  EXPECT_EQ(policy.SelectVictims(4, 3), (Blocks{1, 0, 5, 4}));
}

TEST(HintPolicy, WhatWasThereBeforeTheFirstHintCountsAsShared) {
  HintPolicy policy(Lru(20), {.num_blocks = 20}, false);
  Serve(policy, 0, 2, 0, {.request = 1, .session = 1});
  Serve(policy, 2, 2, 1, {.request = 2, .session = 2});
  Return(policy, 2, 2, 2, {.request = 3, .session = 2, .will_continue = false});
  policy.Release(Blocks{3, 2}, {3, {.request = 3, .session = 2, .will_continue = false}});
  EXPECT_EQ(policy.SelectVictims(4, 4), (Blocks{1, 0, 3, 2}));
}

TEST(HintPolicy, WhatGoesOnIsPinnedForAsLongAsThatTakes) {
  HintPolicy policy(Lru(20), {.num_blocks = 20}, false);
  int64_t now_us = 0;
  for (uint64_t i = 0; i < 20; ++i) {
    Serve(policy, 0, 2, now_us, {.request = i, .session = 1, .will_continue = true});
    now_us += 50 * kSecond;
    policy.Tick(now_us);
    Return(policy, 0, 2, now_us, {.request = i, .session = 1});
    policy.Forget(0);
    policy.Forget(1);
  }
  EXPECT_EQ(policy.durations().num_samples(), 20);
  Serve(policy, 0, 2, now_us, {.request = 30, .session = 1, .will_continue = true});
  Serve(policy, 2, 2, now_us + 1, {.request = 31, .session = 2});
  EXPECT_EQ(policy.stats().pinned, 2);
  policy.Tick(now_us + 49 * kSecond);
  EXPECT_EQ(policy.stats().pinned, 2);
  policy.Tick(now_us + 60 * kSecond);
  EXPECT_EQ(policy.stats().pinned, 0);
}

TEST(DurationHistory, ForgetsSlowlyAndKnowsABoundedNumberOfKinds) {
  DurationHistory history;
  EXPECT_EQ(history.ExpectedUs(1), static_cast<int64_t>(DurationHistory::kFirstGuessS * 1e6));
  for (uint64_t kind = 0; kind < 2 * DurationHistory::kMaxKinds; ++kind) {
    history.Add(kind, kSecond);
  }
  EXPECT_EQ(history.num_kinds(), DurationHistory::kMaxKinds);
  for (int i = 0; i < 1000; ++i) {
    history.Add(3, kSecond);
  }
  EXPECT_LT(history.ExpectedUs(3), 2 * kSecond);
  for (int i = 0; i < 2000; ++i) {
    history.Add(3, 100 * kSecond);
  }
  EXPECT_GT(history.ExpectedUs(3), 90 * kSecond);
  history.Add(3, int64_t{1} << 60);
  EXPECT_LE(history.ExpectedUs(3), static_cast<int64_t>(DurationHistory::kMaxS * 1e6));
}

TEST(ReturnTracker, RemembersABoundedNumberOfDepartures) {
  ReturnTracker tracker(2);
  for (uint64_t i = 0; i < 3 * ReturnTracker::kMaxDepartures; ++i) {
    tracker.Track({.block = 0, .content = i + 1});
    tracker.Depart(1, Blocks{0}, {static_cast<int64_t>(i), {.request = i, .session = i + 1}});
    tracker.Evicted(Blocks{0});
  }
  EXPECT_EQ(tracker.num_departures(), ReturnTracker::kMaxDepartures);
  tracker.Missed(std::vector<uint64_t>{1}, {1, {}});
  EXPECT_EQ(tracker.durations().num_samples(), 0);
  tracker.Missed(std::vector<uint64_t>{3 * ReturnTracker::kMaxDepartures}, {1 << 30, {}});
  EXPECT_EQ(tracker.durations().num_samples(), 1);
}

TEST(Overlays, NamesAreCheckedAndOverlaysOfUnknownPoliciesToo) {
  const auto fault = [](const char* name) {
    const auto made = MakeEvictionPolicy({.name = name, .num_blocks = 4});
    return made.has_value() ? std::string() : made.error().message;
  };
  EXPECT_EQ(fault("asym+continuum"), "");
  EXPECT_NE(fault("asym+").find("unknown overlay \"\""), std::string::npos);
  EXPECT_NE(fault("asym+lru").find("choose of continuum"), std::string::npos);
  EXPECT_NE(fault("asym+continuum+continuum").find("twice"), std::string::npos);
  EXPECT_NE(fault("lfru+continuum").find("unknown eviction policy \"lfru\""), std::string::npos);
  EXPECT_TRUE(PolicyUsesCost("asym+continuum"));
  EXPECT_FALSE(PolicyUsesCost("lru+continuum"));
}

}  // namespace
}  // namespace kvik::kv
