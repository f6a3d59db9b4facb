// SPDX-License-Identifier: Apache-2.0
// The policies that count and remember but weigh little: lfu, fifo, slru, gdsf, max-score-class.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kv/eviction_policy.h"

namespace kvik::kv {
namespace {

using testing::ElementsAre;
using Ids = std::vector<BlockId>;

class Cache {
 public:
  explicit Cache(const std::string& policy)
      : policy_(MakeEvictionPolicy({.name = policy, .num_blocks = 10}).value()) {}

  // A request that computes these blocks, ascending.
  void Compute(const Ids& ids, int32_t turn = 0) {
    for (size_t i = 0; i < ids.size(); ++i) {
      policy_->Track({ids[i], static_cast<int32_t>(i) * 16, static_cast<uint64_t>(ids[i]) + 1000});
    }
    Let(ids, turn);
  }
  // A request that uses these cached blocks, ascending.
  void Use(const Ids& ids, int32_t turn = 0) {
    policy_->Hit(ids, At(turn));
    policy_->Touch(ids, At(turn));
    Let(ids, turn);
  }
  void Wait(int64_t seconds) { now_us_ += seconds * 1000000; }
  Ids Evict(size_t count) { return policy_->SelectVictims(count, now_us_); }
  EvictionPolicy& policy() { return *policy_; }

 private:
  void Let(const Ids& ids, int32_t turn) {
    policy_->Release(Ids(ids.rbegin(), ids.rend()), At(turn));
  }
  Access At(int32_t turn) const {
    Access access;
    access.now_us = now_us_;
    access.request.turn = turn;
    return access;
  }

  std::unique_ptr<EvictionPolicy> policy_;
  int64_t now_us_ = 0;
};

TEST(LfuPolicy, FewestUsesGoFirstThenTheOrderOfLru) {
  Cache cache("lfu");
  cache.Compute({0, 1, 2});
  cache.Compute({3, 4});
  cache.Use({0, 1});
  cache.Use({0});
  EXPECT_THAT(cache.Evict(5), ElementsAre(2, 4, 3, 1, 0));
}

TEST(LfuPolicy, CountsStartAgainWhenABlockComesBack) {
  Cache cache("lfu");
  cache.Compute({0});
  cache.Use({0});
  cache.Use({0});
  EXPECT_THAT(cache.Evict(1), ElementsAre(0));
  cache.Compute({0});
  cache.Compute({1});
  EXPECT_THAT(cache.Evict(1), ElementsAre(0));
}

TEST(FifoPolicy, UseDoesNotMoveABlock) {
  Cache cache("fifo");
  cache.Compute({0, 1});
  cache.Compute({2, 3});
  cache.Use({0, 1});
  EXPECT_THAT(cache.Evict(2), ElementsAre(1, 0));
  cache.Compute({0});
  EXPECT_THAT(cache.Evict(3), ElementsAre(3, 2, 0));
}

TEST(SlruPolicy, BlocksUsedAgainStandBehindNewerOnes) {
  Cache cache("slru");
  cache.Compute({0, 1});
  cache.Use({0, 1});
  cache.Compute({2, 3});
  EXPECT_THAT(cache.Evict(4), ElementsAre(3, 2, 1, 0));
}

TEST(SlruPolicy, AtMostFourFifthsAreProtected) {
  Cache cache("slru");
  for (BlockId id = 0; id < 10; ++id) {
    cache.Compute({id});
  }
  for (BlockId id = 0; id < 9; ++id) {  // the ninth pushes block 0 back, to the end of the line
    cache.Use({id});
  }
  EXPECT_THAT(cache.Evict(4), ElementsAre(9, 0, 1, 2));
}

TEST(SlruPolicy, MemoryOfManyUsesIsBounded) {
  Cache cache("slru");
  cache.Compute({0, 1, 2});
  for (int i = 0; i < 1000; ++i) {
    cache.Use({0, 1});
  }
  EXPECT_THAT(cache.Evict(3), ElementsAre(2, 1, 0));
}

TEST(GdsfPolicy, WeighsUsesTimesCost) {
  Cache cache("gdsf");
  cache.Compute({0, 1, 2});  // deeper ones cost more, a little
  cache.Use({0});
  EXPECT_THAT(cache.Evict(3), ElementsAre(1, 2, 0));
}

TEST(GdsfPolicy, OldMeritFades) {
  Cache cache("gdsf");
  cache.Compute({0});
  cache.Use({0});
  cache.Use({0});  // three uses
  for (int i = 0; i < 4; ++i) {
    cache.Compute({1});
    const Ids victim = cache.Evict(1);
    if (victim == Ids{0}) {
      return;
    }
    ASSERT_EQ(victim, Ids{1}) << i;
  }
  FAIL() << "a block used three times outlives every new one";
}

TEST(MaxScoreClassPolicy, LearnsWhichTurnsComeBack) {
  Cache cache("max-score-class");
  // First turns never come back, second ones always do.
  for (int i = 0; i < 200; ++i) {
    cache.Compute({0}, 1);
    cache.Compute({1}, 2);
    cache.Wait(10);
    cache.Use({1}, 2);
    ASSERT_THAT(cache.Evict(2), testing::UnorderedElementsAre(0, 1));
  }
  cache.Compute({1}, 2);
  cache.Compute({0}, 1);
  EXPECT_THAT(cache.Evict(1), ElementsAre(0));
}

TEST(MaxScoreClassPolicy, LearnsFromWhatItEvictedToo) {
  Cache cache("max-score-class");
  for (int i = 0; i < 200; ++i) {
    cache.Compute({0}, 1);
    cache.Compute({1}, 2);
    (void)cache.Evict(2);
    cache.Wait(10);
    cache.policy().Missed(std::vector<uint64_t>{1001},
                          Access{.now_us = i * 10000000, .request = {}});
  }
  cache.Compute({1}, 2);
  cache.Compute({0}, 1);
  EXPECT_THAT(cache.Evict(1), ElementsAre(0));
}

TEST(MaxScoreClassPolicy, OfOneClassTheOldestGoesAndOfOneRequestTheDeepest) {
  Cache cache("max-score-class");
  cache.Compute({0, 1}, 1);
  cache.Wait(5);
  cache.Compute({2, 3}, 1);
  EXPECT_THAT(cache.Evict(4), ElementsAre(1, 0, 3, 2));
}

}  // namespace
}  // namespace kvik::kv
