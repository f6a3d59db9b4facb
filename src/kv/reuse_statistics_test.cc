// SPDX-License-Identifier: Apache-2.0
#include "kv/reuse_statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/rng.h"

namespace kvik::kv {
namespace {

constexpr int64_t kSecond = 1'000'000;

TEST(ReuseStatistics, ALifespanFollowsTheGapsOfItsClassAfter200OfThemEvery30Seconds) {
  ReuseStatistics statistics(0, 100);
  EXPECT_EQ(statistics.lifespan_s(ReuseClass::kChat), 600);
  EXPECT_EQ(statistics.lifespan_s(ReuseClass::kTool), 60);
  statistics.Tick(0);
  // 199 gaps of 1 s: not enough. With one of 100 s it is: the P99 of 200 is still 1 s.
  statistics.Returned({.time_us = 0, .cls = ReuseClass::kTool}, kSecond, 199);
  EXPECT_TRUE(statistics.Tick(30 * kSecond));
  EXPECT_EQ(statistics.lifespan_s(ReuseClass::kTool), 60);
  statistics.Returned({.time_us = 0, .cls = ReuseClass::kTool}, 100 * kSecond, 1);
  EXPECT_FALSE(statistics.Tick(59 * kSecond));
  EXPECT_EQ(statistics.lifespan_s(ReuseClass::kTool), 60);
  EXPECT_TRUE(statistics.Tick(60 * kSecond));
  EXPECT_NEAR(statistics.lifespan_s(ReuseClass::kTool), 1, 0.05);
  statistics.Returned({.time_us = 0, .cls = ReuseClass::kTool}, 100 * kSecond, 10);
  EXPECT_TRUE(statistics.Tick(90 * kSecond));
  EXPECT_NEAR(statistics.lifespan_s(ReuseClass::kTool), 100, 5);
  EXPECT_EQ(statistics.lifespan_s(ReuseClass::kChat), 600) << "no gap was one of a chat";
}

TEST(ReuseStatistics, AFixedLifespanStays) {
  ReuseStatistics statistics(123, 100);
  statistics.Tick(0);
  statistics.Returned({}, kSecond, 1000);
  EXPECT_FALSE(statistics.Tick(30 * kSecond));
  EXPECT_EQ(statistics.lifespan_s(ReuseClass::kChat), 123);
  EXPECT_EQ(statistics.lifespan_s(ReuseClass::kTool), 123);
}

// Gaps are known only from what was kept, unless evicted contents are remembered: blocks that are
// evicted after 10 s and asked for again after 100 s.
TEST(ReuseStatistics, EvictedBlocksThatAreAskedForAgainCount) {
  ReuseStatistics statistics(0, 1000);
  statistics.Tick(0);
  std::vector<uint64_t> contents;
  for (uint64_t i = 0; i < 300; ++i) {
    contents.push_back(Rng(i).Next());
    statistics.Evicted(contents.back(), {.time_us = 0, .cls = ReuseClass::kChat});
  }
  statistics.Returned({.time_us = 0}, 10 * kSecond, 300);
  statistics.Missed(contents, 100 * kSecond);
  statistics.Missed(contents, 1000 * kSecond);  // each counts once
  statistics.Tick(100 * kSecond);
  EXPECT_NEAR(statistics.lifespan_s(ReuseClass::kChat), 100, 5);
  EXPECT_EQ(statistics.ghosts().size(), 0U);
}

TEST(ReuseStatistics, TheToolFactorIsTheRatioOfReturnRates) {
  ReuseStatistics statistics(0, 100);
  EXPECT_EQ(statistics.LnReturnFactor(ReuseClass::kTool), 0) << "nothing known";
  for (int i = 0; i < 4000; ++i) {
    const bool tool = i % 4 == 0;  // of which 90 % return; of the others 30 %
    const ReuseClass cls = tool ? ReuseClass::kTool : ReuseClass::kChat;
    statistics.Departed(cls);
    const bool returns = tool ? i % 40 != 0 : i % 40 < 12;
    statistics.Returned({.cls = cls, .awaits_return = returns}, kSecond, 7);
  }
  const double any = 0.25 * 0.9 + 0.75 * 0.3;
  EXPECT_NEAR(statistics.LnReturnFactor(ReuseClass::kTool), std::log(0.9 / any), 0.03);
  EXPECT_EQ(statistics.LnReturnFactor(ReuseClass::kChat), 0);
}

ReuseStatistics Learned() {
  ReuseStatistics statistics(0, 100);
  statistics.Tick(0);
  for (int64_t i = 1; i < 500; ++i) {
    statistics.Departed(ReuseClass::kTool);
    statistics.Departed(ReuseClass::kChat);
    statistics.Returned({.cls = ReuseClass::kTool, .awaits_return = i % 3 != 0}, i * kSecond / 10,
                        2);
    statistics.Returned({.cls = ReuseClass::kChat, .awaits_return = i % 4 == 0}, i * kSecond, 1);
  }
  statistics.Tick(600 * kSecond);
  return statistics;
}

TEST(ReuseStatistics, ASavedStateRestoresWhatWasLearned) {
  const ReuseStatistics learned = Learned();
  const std::string state = learned.SaveState();
  ReuseStatistics restored(0, 1000);
  ASSERT_TRUE(restored.RestoreState(state));
  for (const ReuseClass cls : {ReuseClass::kChat, ReuseClass::kTool}) {
    EXPECT_EQ(restored.lifespan_s(cls), learned.lifespan_s(cls));
    EXPECT_EQ(restored.LnReturnFactor(cls), learned.LnReturnFactor(cls));
  }
  EXPECT_EQ(restored.SaveState(), state);
  // And goes on from there: few new gaps change little.
  restored.Tick(0);
  restored.Returned({}, kSecond, 5);
  restored.Tick(30 * kSecond);
  EXPECT_NEAR(restored.lifespan_s(ReuseClass::kChat), learned.lifespan_s(ReuseClass::kChat), 30);
}

TEST(ReuseStatistics, AWrongStateIsRefusedAndChangesNothing) {
  const std::string good = Learned().SaveState();
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    KVIK_CHECK(at != std::string::npos);
    return text.replace(at, from.size(), to);
  };
  const std::vector<std::string> wrong = {
      "",
      "not JSON",
      "{}",
      "[]",
      "{\"kvik_reuse_statistics\":1,\"classes\":[]}",
      replaced("\"kvik_reuse_statistics\":1", "\"kvik_reuse_statistics\":2"),
      replaced("\"departed\":", "\"departed\":-"),
      replaced("\"lifespan_s\":", "\"lifespan_s\":-"),
      replaced("\"samples\":499", "\"samples\":0"),
      replaced("\"samples\":499", "\"samples\":-5"),
      replaced("\"samples\":499", "\"samples\":\"many\""),
      replaced("\"gaps\":[[", "\"gaps\":[[5000,1],["),
      replaced("\"gaps\":[[", "\"gaps\":[[-1,1],["),
      replaced("\"gaps\":[[", "\"gaps\":[[0,1e300],["),
      replaced("\"gaps\":[[", "\"gaps\":[[0],["),
      replaced("\"gaps\":[[", "\"gaps\":[[1e300,1],["),
      replaced("\"gaps\":[[", "\"gaps\":[[9223372036854775807,1],["),
      replaced("\"gaps\":[[", "\"gaps\":[[0,\"much\"],["),
      replaced("\"gaps\":[[", "\"gaps\":[7,["),
      replaced("\"samples\":499", "\"samples\":1e300"),
      replaced("\"samples\":499", "\"samples\":[]"),
      good.substr(0, good.size() / 2),
      std::string(2 << 20, ' '),
  };
  for (const std::string& text : wrong) {
    ReuseStatistics statistics(0, 100);
    const std::string before = statistics.SaveState();
    const auto result = statistics.RestoreState(text);
    ASSERT_FALSE(result.has_value()) << text.substr(0, 300);
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidInput);
    EXPECT_THAT(result.error().message, testing::HasSubstr("saved state"));
    EXPECT_EQ(statistics.SaveState(), before);
  }
}

}  // namespace
}  // namespace kvik::kv
