// SPDX-License-Identifier: Apache-2.0
#include "events/follow.h"

#include <gtest/gtest.h>

#include <deque>
#include <limits>
#include <string>

#include "base/rng.h"

namespace kvik::events {
namespace {

constexpr FollowOptions kOptions = {
    .can_replay = true, .ask_interval_us = 1000, .replay_timeout_us = 5000};

TEST(FollowState, BeginsByAskingForEverything) {
  FollowState state(kOptions);
  EXPECT_EQ(state.due_us(), 0);
  EXPECT_EQ(state.Ask(0), 0U);
  EXPECT_FALSE(state.Ask(10));  // under way
  EXPECT_FALSE(state.up_to_date());
  EXPECT_FALSE(state.Live(7).take);           // comes again with the replay
  EXPECT_TRUE(state.Replayed(6, true).take);  // starts over
  EXPECT_TRUE(state.Replayed(7, false).take);
  state.ReplayEnded(20);
  EXPECT_TRUE(state.up_to_date());
  EXPECT_TRUE(state.Live(8).take);
  EXPECT_FALSE(state.Live(8).take);  // had already
  EXPECT_EQ(state.gaps(), 0);
}

TEST(FollowState, AsksForAGapAtOnceAndForSilenceNowAndThen) {
  FollowState state(kOptions);
  (void)state.Ask(0);
  state.ReplayEnded(10);
  EXPECT_TRUE(state.Live(0).take);
  EXPECT_FALSE(state.Ask(500));
  EXPECT_FALSE(state.Live(2).take);
  EXPECT_FALSE(state.Live(3).take);
  EXPECT_EQ(state.gaps(), 1);
  EXPECT_EQ(state.Ask(500), 1U);
  for (uint64_t sequence = 1; sequence <= 3; ++sequence) {
    const FollowState::Verdict verdict = state.Replayed(sequence, false);
    EXPECT_TRUE(verdict.take && !verdict.forget);
  }
  EXPECT_FALSE(state.Live(5).take);  // 4 was lost while the replay was under way
  state.ReplayEnded(600);
  EXPECT_FALSE(state.up_to_date());
  EXPECT_EQ(state.Ask(600), 4U);  // so there is more to ask for
  state.ReplayEnded(700);         // but nobody has it: not again at once
  EXPECT_FALSE(state.Ask(800));
  EXPECT_EQ(state.due_us(), 1700);
  EXPECT_EQ(state.Ask(1700), 4U);
}

TEST(FollowState, ForgetsWhatWasBeforeAGapThatNobodyCanFill) {
  FollowState state(kOptions);
  (void)state.Ask(0);
  const FollowState::Verdict verdict = state.Replayed(40, false);
  EXPECT_TRUE(verdict.forget && verdict.take);
  EXPECT_TRUE(state.Live(41).take);
}

TEST(FollowState, AReplayThatDoesNotEndIsGivenUpAndAskedForAgain) {
  FollowState state(kOptions);
  (void)state.Ask(0);
  EXPECT_FALSE(state.GiveUp(4999));
  EXPECT_EQ(state.due_us(), 5000);
  EXPECT_TRUE(state.GiveUp(5000));
  EXPECT_EQ(state.Ask(5000), 0U);
}

TEST(FollowState, WithoutReplaysEveryGapBeginsAnew) {
  FollowState state({.can_replay = false});
  EXPECT_FALSE(state.Ask(0));
  EXPECT_EQ(state.due_us(), std::numeric_limits<int64_t>::max());
  FollowState::Verdict verdict = state.Live(3);
  EXPECT_TRUE(verdict.forget && verdict.take);
  verdict = state.Live(4);
  EXPECT_TRUE(!verdict.forget && verdict.take);
  verdict = state.Live(6);
  EXPECT_TRUE(verdict.forget && verdict.take);
  verdict = state.Live(0);  // another life of the publisher
  EXPECT_TRUE(verdict.forget && verdict.take);
  EXPECT_EQ(state.gaps(), 1);
}

// Live batches are lost and replays too. Batches are taken in order, each once, or after a start
// over; and when the publisher falls silent the follower catches up.
TEST(FollowStateProperty, TakesEachBatchOnceInOrderAndCatchesUp) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    FollowState state(kOptions);
    const uint64_t kept = 1 + rng.Below(10);
    uint64_t published = 0;
    uint64_t taken = 0;  // the next that may be taken
    int64_t now = 0;
    std::deque<uint64_t> replay;
    bool replaying = false;
    const auto take = [&](const FollowState::Verdict& verdict, uint64_t sequence, bool over) {
      if (verdict.take) {
        ASSERT_TRUE(sequence == taken || (over && sequence > taken));
        ASSERT_FALSE(verdict.forget);
        taken = sequence + 1;
      }
    };
    for (int step = 0; step < 2000; ++step) {
      now += static_cast<int64_t>(rng.Below(200));
      if (step < 1500 && rng.Below(3) == 0) {
        const uint64_t sequence = published++;
        if (rng.Below(4) != 0) {
          ASSERT_NO_FATAL_FAILURE(take(state.Live(sequence), sequence, false));
        }
      }
      if (state.GiveUp(now)) {
        replaying = false;
        replay.clear();
      }
      if (const auto from = state.Ask(now)) {
        ASSERT_EQ(*from, taken);
        replaying = step >= 1500 || rng.Below(5) != 0;  // or the request is lost
        for (uint64_t s = published - *from > kept ? published - 1 : *from; s < published; ++s) {
          replay.push_back(s);
        }
      }
      if (replaying && rng.Below(2) == 0) {
        if (replay.empty()) {
          replaying = false;
          state.ReplayEnded(now);
        } else {
          const bool over = replay.front() > taken;
          ASSERT_NO_FATAL_FAILURE(take(state.Replayed(replay.front(), over), replay.front(), over));
          replay.pop_front();
        }
      } else if (!replaying) {
        replay.clear();
      }
    }
    EXPECT_EQ(taken, published);
    EXPECT_TRUE(state.up_to_date());
  }
}

}  // namespace
}  // namespace kvik::events
