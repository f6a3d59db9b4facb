// SPDX-License-Identifier: Apache-2.0
#include "kv/asym_run_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace kvik::kv {
namespace {

constexpr int64_t kSecond = 1'000'000;

AsymRunPolicy Make(const CostModel& cost) {
  return AsymRunPolicy(
      {.name = "asym-run", .num_blocks = 200, .block_size_tokens = 16, .cost = cost});
}

// One conversation of `blocks` blocks, from `first`, let go of at `now_us`.
void Converse(EvictionPolicy& policy, BlockId first, int32_t blocks, int64_t now_us) {
  std::vector<BlockId> released;
  for (BlockId id = first + blocks - 1; id >= first; --id) {
    policy.Track({.block = id, .first_pos = (id - first) * 16, .content = uint64_t(id)});
    released.push_back(id);
  }
  policy.Release(released, {.now_us = now_us});
}

// How many runs of neighbouring ids there are.
int Runs(const std::vector<BlockId>& ids) {
  const std::set<BlockId> set(ids.begin(), ids.end());
  return static_cast<int>(
      std::count_if(set.begin(), set.end(), [&](BlockId id) { return !set.contains(id - 1); }));
}

TEST(AsymRunPolicy, EvictsARunOf128TokensDeepestFirst) {
  AsymRunPolicy policy = Make({.token_us = 100, .square_us = 0.01});
  Converse(policy, 0, 32, 0);
  EXPECT_THAT(policy.SelectVictims(8, kSecond), testing::ElementsAre(7, 6, 5, 4, 3, 2, 1, 0));
  EXPECT_THAT(policy.SelectVictims(3, kSecond), testing::ElementsAre(15, 14, 13));
  EXPECT_THAT(policy.SelectVictims(6, kSecond), testing::ElementsAre(12, 11, 10, 9, 8, 23))
      << "what is left of a run is a run";
}

TEST(AsymRunPolicy, NoRunOfALongReleaseIsShorterThan64Tokens) {
  for (int32_t blocks = 4; blocks < 60; ++blocks) {
    AsymRunPolicy policy = Make({.token_us = 100, .square_us = 0.01});
    Converse(policy, 0, blocks, 0);
    const int num_runs = (blocks + 7) / 8;
    EXPECT_EQ(policy.index().size(), static_cast<size_t>(num_runs)) << blocks;
    const BlockId deepest = policy.SelectVictims(1, kSecond).front();  // of the first run
    EXPECT_GE(deepest + 1, 4) << blocks;
    EXPECT_LE(deepest + 1, 8) << blocks;
  }
}

TEST(AsymRunPolicy, ChargesSegmentsSoThatGapsGrowRatherThanMultiply) {
  // Two conversations, alike but for a second: the first runs of both are cheapest, then the second
  // runs, and so on, unless opening a gap in the other costs more than going on in the first.
  const auto gaps = [](double segment_us) {
    AsymRunPolicy policy = Make({.token_us = 100, .segment_us = segment_us, .square_us = 0.001});
    Converse(policy, 0, 64, 0);
    Converse(policy, 100, 64, kSecond);
    return Runs(policy.SelectVictims(48, 2 * kSecond));
  };
  EXPECT_EQ(gaps(0), 2);
  EXPECT_EQ(gaps(3000), 1);
}

TEST(AsymRunPolicy, BlocksHeldAgainLeaveTheirRun) {
  AsymRunPolicy policy = Make({.token_us = 100, .square_us = 0.01});
  Converse(policy, 0, 16, 0);
  const std::vector<BlockId> beginning = {0, 1, 2, 3, 4, 5};
  policy.Hit(beginning, {.now_us = kSecond});
  policy.Touch(beginning, {.now_us = kSecond});
  EXPECT_EQ(policy.stats().evictable, 10);
  EXPECT_THAT(policy.SelectVictims(3, 2 * kSecond), testing::ElementsAre(7, 6, 15));
}

}  // namespace
}  // namespace kvik::kv
