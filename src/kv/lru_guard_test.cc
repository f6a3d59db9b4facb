// SPDX-License-Identifier: Apache-2.0
#include "kv/lru_guard.h"

#include <gtest/gtest.h>

namespace kvik::kv {
namespace {

constexpr int64_t kSecondUs = 1'000'000;

class LruGuardTest : public testing::Test {
 protected:
  // A request a second; true if LRU chooses at the end.
  bool Run(int seconds, double policy_us, double lru_us) {
    for (int i = 0; i < seconds; ++i) {
      now_us_ += kSecondUs;
      guard_.Add(now_us_, policy_us, lru_us);
    }
    return guard_.use_lru();
  }
  LruGuard guard_;
  int64_t now_us_ = 1000 * kSecondUs;
};

TEST_F(LruGuardTest, LeavesAPolicyAloneThatIsLevelOrAhead) {
  EXPECT_FALSE(Run(600, 100, 100));
  EXPECT_FALSE(Run(600, 90, 100));
  EXPECT_EQ(guard_.hand_overs(), 0);
}

TEST_F(LruGuardTest, HandsOverWhenBehindAndBackWhenLevel) {
  EXPECT_TRUE(Run(60, 110, 100));
  EXPECT_EQ(guard_.hand_overs(), 1);
  EXPECT_TRUE(Run(30, 100, 100));
  EXPECT_FALSE(Run(600, 100, 100));
}

TEST_F(LruGuardTest, HandsBackSoonerWhenThePolicyIsAhead) {
  ASSERT_TRUE(Run(60, 110, 100));
  EXPECT_FALSE(Run(75, 80, 100));
}

TEST_F(LruGuardTest, ASmallLossIsNoReason) { EXPECT_FALSE(Run(3000, 100.4, 100)); }

TEST_F(LruGuardTest, OneExpensiveRequestIsNoReason) {
  ASSERT_FALSE(Run(600, 100, 100));
  EXPECT_FALSE(Run(1, 5000, 100));
  EXPECT_FALSE(Run(100, 100, 100));
}

TEST_F(LruGuardTest, WhatWasWonBeforeIsNotLostAtOnce) {
  ASSERT_FALSE(Run(600, 50, 100));
  EXPECT_FALSE(Run(60, 110, 100));
}

TEST_F(LruGuardTest, WaitsLongerEveryTimeThePolicyFailsAgain) {
  const auto seconds_with_lru = [&] {
    while (!Run(1, 110, 100)) {
    }
    int seconds = 0;
    while (Run(1, 100, 100)) {
      ++seconds;
    }
    return seconds;
  };
  int last = seconds_with_lru();
  for (int i = 0; i < 3; ++i) {
    last = seconds_with_lru();
  }
  EXPECT_GE(last, 8 * static_cast<int>(LruGuard::kFirstWaitS) - 2);
}

}  // namespace
}  // namespace kvik::kv
