// SPDX-License-Identifier: Apache-2.0
#include "kv/tier_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kv/testing/toy_cache.h"

namespace kvik::kv {
namespace {

constexpr int32_t kBlock = 16;
constexpr FixedTierCost::Numbers kFast{.queue_us = 1, .bytes_per_s = 1e12};
// In the middle of what blocks cost to compute at the positions below.
constexpr FixedTierCost::Numbers kSlow{
    .queue_us = 1000, .bytes_per_s = 1e6, .compression = 2, .bytes_per_token = 1000};

TEST(TierCost, IsQueueAndTransferAndDecoding) {
  const FixedTierCost tier({.queue_us = 100,
                            .bytes_per_s = 1e6,
                            .compression = 4,
                            .bytes_per_token = 1000,
                            .decode_us = 3});
  EXPECT_NEAR(tier.FetchUs(7, kBlock).value(), 100 + 16000 / 4.0 + 48, 1e-9);
}

TEST(TierCost, TheLessOfComputingAndFetchingCounts) {
  const CostModel cost{.token_us = 100, .square_us = 0.05};
  const FixedTierCost tier({.queue_us = 2000, .bytes_per_s = 1e12});
  EXPECT_NEAR(ReturnCostUs(cost, &tier, 1, 0, kBlock), cost.RecomputeUs(0, kBlock), 1e-9);
  EXPECT_NEAR(ReturnCostUs(cost, &tier, 1, 100'000, kBlock), 2000, 1);
  EXPECT_NEAR(ReturnCostUs(cost, nullptr, 1, 100'000, kBlock), cost.RecomputeUs(100'000, kBlock),
              1e-9);
}

TEST(TierCost, IsAskedForAgainWhenItMovedByMoreThanTwo) {
  FixedTierCost tier({.queue_us = 100, .bytes_per_s = 1e12});
  TierWatch watch(&tier, kBlock);
  EXPECT_FALSE(watch.Moved());
  tier.Set({.queue_us = 190, .bytes_per_s = 1e12});
  EXPECT_FALSE(watch.Moved());
  tier.Set({.queue_us = 210, .bytes_per_s = 1e12});
  EXPECT_TRUE(watch.Moved());
  EXPECT_FALSE(watch.Moved());
  tier.Set({.queue_us = 100, .bytes_per_s = 1e12});
  EXPECT_TRUE(watch.Moved());
  EXPECT_FALSE(TierWatch(nullptr, kBlock).Moved());
}

class UnderTierCost : public testing::TestWithParam<const char*> {
 protected:
  static constexpr int32_t kBlocks = 50;
  static PolicyOptions Options(std::shared_ptr<const TierCost> tier) {
    return {.name = GetParam(),
            .num_blocks = kBlocks,
            .block_size_tokens = kBlock,
            .cost = {.token_us = 100, .square_us = 0.01},
            .tier = std::move(tier),
            .lifespan_s = 600};
  }
  // Requests of a block each, at positions in no order, that end one after the other.
  static std::vector<BlockId> Order(EvictionPolicy& policy, const std::function<void()>& between) {
    for (BlockId id = 0; id < kBlocks; ++id) {
      const Access access{id * 1'000'000, {.request = static_cast<uint64_t>(id) + 1}};
      const uint64_t content = static_cast<uint64_t>(id) + 1;
      policy.Hit({}, access);
      policy.Missed(std::span(&content, 1), access);
      policy.Track(
          {.block = id, .first_pos = id * 31 % kBlocks * 1000 * kBlock, .content = content});
      policy.Release(std::span(&id, 1), access);
    }
    between();
    policy.Tick(kBlocks * 1'000'000);
    return policy.SelectVictims(kBlocks, kBlocks * 1'000'000);
  }
};

TEST_P(UnderTierCost, PositionsCountOnlyWhereComputingIsCheaper) {
  const auto nothing = [] {};
  const auto order = [&](const FixedTierCost::Numbers* numbers) {
    const auto policy =
        MakeEvictionPolicy(
            Options(numbers == nullptr ? nullptr : std::make_shared<FixedTierCost>(*numbers)))
            .value();
    return Order(*policy, nothing);
  };
  const std::vector<BlockId> alone = order(nullptr);
  const std::vector<BlockId> slow = order(&kSlow);
  const std::vector<BlockId> fast = order(&kFast);
  EXPECT_NE(alone, slow);
  EXPECT_NE(slow, fast);
  // What costs all the same goes in LRU's order.
  std::vector<BlockId> lru(kBlocks);
  std::iota(lru.begin(), lru.end(), 0);
  EXPECT_NE(alone, lru);
  EXPECT_EQ(fast, lru);
}

TEST_P(UnderTierCost, AnEstimateThatMovedIsFollowed) {
  const auto moving = std::make_shared<FixedTierCost>(kFast);
  const auto policy = MakeEvictionPolicy(Options(moving)).value();
  const auto moved = Order(*policy, [&] { moving->Set(kSlow); });
  const auto slow = MakeEvictionPolicy(Options(std::make_shared<FixedTierCost>(kSlow))).value();
  EXPECT_EQ(moved, Order(*slow, [] {}));
}

INSTANTIATE_TEST_SUITE_P(Policies, UnderTierCost,
                         testing::Values("asym", "asym-run", "hazard", "gdsf", "pensieve"),
                         [](const auto& param) {
                           std::string name(param.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace kvik::kv
