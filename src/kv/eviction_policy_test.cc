// SPDX-License-Identifier: Apache-2.0
#include "kv/eviction_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <set>

#include "base/rng.h"

namespace kvik::kv {
namespace {

using testing::ElementsAre;

std::unique_ptr<EvictionPolicy> Make(const std::string& name, int32_t num_blocks,
                                     uint64_t seed = 0) {
  return MakeEvictionPolicy(PolicyOptions{.name = name, .num_blocks = num_blocks, .seed = seed})
      .value();
}

void TrackAll(EvictionPolicy& policy, const std::vector<BlockId>& blocks) {
  for (const BlockId block : blocks) {
    policy.Track(TrackedBlock{.block = block, .first_pos = block * 16});
  }
}

TEST(EvictionPolicy, UnknownNameListsTheKnownOnes) {
  const auto result = MakeEvictionPolicy(PolicyOptions{.name = "lfru", .num_blocks = 4, .seed = 0});
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidInput);
  for (const auto name : EvictionPolicyNames()) {
    EXPECT_NE(result.error().message.find(name), std::string::npos);
  }
}

TEST(LruPolicy, EarliestReleaseGoesFirstAndDeepestBlockWithinIt) {
  const auto policy = Make("lru", 8);
  TrackAll(*policy, {0, 1, 2, 3, 4, 5});
  policy->Release(std::vector<BlockId>{2, 1, 0}, {});  // a sequence frees its table in reverse
  policy->Release(std::vector<BlockId>{5, 4, 3}, {});
  EXPECT_THAT(policy->SelectVictims(4, 0), ElementsAre(2, 1, 0, 5));
}

TEST(LruPolicy, ATouchedBlockStartsAgainAtTheEnd) {
  const auto policy = Make("lru", 8);
  TrackAll(*policy, {0, 1, 2});
  policy->Release(std::vector<BlockId>{2, 1, 0}, {});
  policy->Touch(std::vector<BlockId>{1, 2}, {});
  EXPECT_EQ(policy->stats().evictable, 1);
  policy->Release(std::vector<BlockId>{2, 1}, {});
  EXPECT_THAT(policy->SelectVictims(3, 0), ElementsAre(0, 2, 1));
}

// vLLM's free list, written as naively as possible.
TEST(LruPolicy, RandomOperationsAgreeWithANaiveList) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    constexpr int32_t kBlocks = 30;
    const auto policy = Make("lru", kBlocks);
    std::set<BlockId> unknown;
    std::set<BlockId> held;
    std::list<BlockId> order;
    for (BlockId id = 0; id < kBlocks; ++id) {
      unknown.insert(id);
    }
    const auto pick = [&](const auto& from) {
      std::vector<BlockId> some;
      for (const BlockId id : from) {
        if (rng.Below(3) == 0) {
          some.push_back(id);
        }
      }
      return some;
    };
    int64_t evicted = 0;
    for (int step = 0; step < 500; ++step) {
      switch (rng.Below(5)) {
        case 0:
          for (const BlockId id : pick(unknown)) {
            policy->Track(TrackedBlock{.block = id});
            unknown.erase(id);
            held.insert(id);
          }
          break;
        case 1: {
          const auto some = pick(held);
          policy->Release(some, {});
          for (const BlockId id : some) {
            held.erase(id);
            order.push_back(id);
          }
          break;
        }
        case 2: {
          const auto some = pick(order);
          policy->Touch(some, {});
          for (const BlockId id : some) {
            order.remove(id);
            held.insert(id);
          }
          break;
        }
        case 3: {
          const size_t count = rng.Below(order.size() + 1);
          const auto victims = policy->SelectVictims(count, 0);
          ASSERT_EQ(victims.size(), count);
          for (const BlockId id : victims) {
            ASSERT_EQ(id, order.front());
            order.pop_front();
            unknown.insert(id);
          }
          evicted += static_cast<int64_t>(count);
          break;
        }
        default:
          for (BlockId id = 0; id < kBlocks; ++id) {
            if (!unknown.contains(id) && rng.Below(20) == 0) {
              policy->Forget(id);
              held.erase(id);
              order.remove(id);
              unknown.insert(id);
            }
          }
      }
      ASSERT_EQ(policy->stats().evictable, static_cast<int64_t>(order.size()));
      ASSERT_EQ(policy->stats().tracked, static_cast<int64_t>(order.size() + held.size()));
      ASSERT_EQ(policy->stats().evicted, evicted);
    }
  }
}

TEST(RandomPolicy, SameSeedSameVictims) {
  std::vector<std::vector<BlockId>> runs;
  for (const uint64_t seed : {7, 7, 8}) {
    const auto policy = Make("random", 100, seed);
    std::vector<BlockId> blocks(100);
    for (BlockId id = 0; id < 100; ++id) {
      blocks[static_cast<size_t>(id)] = id;
    }
    TrackAll(*policy, blocks);
    policy->Release(blocks, {});
    runs.push_back(policy->SelectVictims(20, 0));
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_NE(runs[0], runs[2]);
}

TEST(RandomPolicy, NeverPicksAHeldBlockAndReachesEveryOther) {
  Rng rng(3);
  const auto policy = Make("random", 20, 5);
  std::vector<int> picked(20);
  for (BlockId id = 0; id < 20; ++id) {
    policy->Track(TrackedBlock{.block = id});
  }
  for (int round = 0; round < 400; ++round) {
    std::vector<BlockId> released;
    for (BlockId id = 0; id < 20; id += 2) {
      released.push_back(id);
    }
    policy->Release(released, {});
    const auto victims = policy->SelectVictims(3, 0);
    EXPECT_EQ(std::set<BlockId>(victims.begin(), victims.end()).size(), 3U);
    for (const BlockId id : victims) {
      ASSERT_EQ(id % 2, 0) << "held";
      ++picked[static_cast<size_t>(id)];
      policy->Track(TrackedBlock{.block = id});
      std::erase(released, id);
    }
    policy->Touch(released, {});
  }
  for (size_t id = 0; id < 20; id += 2) {
    EXPECT_GT(picked[id], 60) << "block " << id << " of an expected 120";
  }
}

}  // namespace
}  // namespace kvik::kv
