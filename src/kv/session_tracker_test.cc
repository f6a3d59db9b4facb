// SPDX-License-Identifier: Apache-2.0
#include "kv/session_tracker.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvik::kv {
namespace {

using Blocks = std::vector<uint64_t>;

TEST(SessionTracker, ARequestThatExtendsAnEarlierOneIsItsNextTurn) {
  SessionTracker tracker(1000);
  EXPECT_EQ(tracker.Arrive(Blocks{1, 2, 3}), (SessionTurn{0, 1}));
  EXPECT_EQ(tracker.Arrive(Blocks{1, 2, 3, 4, 5}), (SessionTurn{0, 2}));
  EXPECT_EQ(tracker.Arrive(Blocks{7, 8}), (SessionTurn{1, 1}));
  EXPECT_EQ(tracker.Arrive(Blocks{1, 2, 3, 4, 5, 6}), (SessionTurn{0, 3}));
  EXPECT_EQ(tracker.num_sessions(), 2U);
}

TEST(SessionTracker, ASharedHeadAloneIsNoSession) {
  SessionTracker tracker(1000);
  EXPECT_EQ(tracker.Arrive(Blocks{1, 2, 3, 4}), (SessionTurn{0, 1}));
  EXPECT_EQ(tracker.Arrive(Blocks{1, 9, 10}), (SessionTurn{1, 1}));
  // A request of one block ends nowhere that could be continued.
  EXPECT_EQ(tracker.Arrive(Blocks{1}), (SessionTurn{2, 1}));
  EXPECT_EQ(tracker.Arrive(Blocks{1, 20, 21}), (SessionTurn{3, 1}));
}

TEST(SessionTracker, TheEndMayBeTheLastKnownBlockButOne) {
  const auto turn_after = [](size_t shared_beyond_end) {
    SessionTracker tracker(1000);
    tracker.Arrive(Blocks{1, 2});
    Blocks branch = {1, 2};
    for (uint64_t i = 0; i < shared_beyond_end; ++i) {
      branch.push_back(100 + i);
    }
    // Makes the blocks behind the end known without ending in any of them.
    Blocks known = branch;
    known.push_back(500);
    tracker.Grow(SessionTurn{9, 1}, known, known.size());
    branch.push_back(600);
    return tracker.Arrive(branch).turn;
  };
  EXPECT_EQ(turn_after(0), 2);
  EXPECT_EQ(turn_after(1), 2);
  EXPECT_EQ(turn_after(2), 1);
}

TEST(SessionTracker, TheAnswerMovesTheEnd) {
  SessionTracker tracker(1000);
  const SessionTurn first = tracker.Arrive(Blocks{1, 2});
  tracker.Grow(first, Blocks{3, 4, 5, 6, 7}, 7);
  EXPECT_EQ(tracker.Arrive(Blocks{1, 2, 3, 4, 5, 6, 7, 8}), (SessionTurn{0, 2}));
}

TEST(SessionTracker, TheLatestOfSeveralThatEndedInABlockCounts) {
  SessionTracker tracker(1000);
  tracker.Arrive(Blocks{1, 2});
  EXPECT_EQ(tracker.Arrive(Blocks{1, 2}), (SessionTurn{0, 2}));
  EXPECT_EQ(tracker.Arrive(Blocks{1, 2, 3}), (SessionTurn{0, 3}));
}

TEST(SessionTracker, ForgetsWhatWasNotSeenForLongAndKeepsWhatWas) {
  SessionTracker tracker(64);
  tracker.Arrive(Blocks{1, 2});
  for (uint64_t i = 0; i < 1000; ++i) {
    tracker.Arrive(Blocks{1, 1000 + i, 5000 + i});
    EXPECT_LE(tracker.num_blocks(), 64U);
  }
  EXPECT_EQ(tracker.Arrive(Blocks{1, 2, 3}).turn, 1);           // forgotten
  EXPECT_EQ(tracker.Arrive(Blocks{1, 1999, 5999, 3}).turn, 2);  // not forgotten
}

TEST(SessionTracker, NoBlocksOpenASession) {
  SessionTracker tracker(2);
  EXPECT_EQ(tracker.Arrive({}), (SessionTurn{0, 1}));
  EXPECT_EQ(tracker.Arrive({}), (SessionTurn{1, 1}));
}

}  // namespace
}  // namespace kvik::kv
