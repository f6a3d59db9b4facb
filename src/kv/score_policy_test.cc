// SPDX-License-Identifier: Apache-2.0
#include "kv/score_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/rng.h"

namespace kvik::kv {
namespace {

// Scores from a table, zero where it has none.
class TablePolicy final : public ScorePolicy {
 public:
  explicit TablePolicy(const PolicyOptions& options) : ScorePolicy(options) {}
  [[nodiscard]] std::string_view name() const override { return "table"; }
  std::map<BlockId, double> scores;

 private:
  double Score(const Block& /*block*/, BlockId id, int64_t /*now_us*/) override {
    const auto it = scores.find(id);
    return it == scores.end() ? 0.0 : it->second;
  }
};

PolicyOptions Options(int32_t num_blocks, VictimSelection selection) {
  return PolicyOptions{.num_blocks = num_blocks, .selection = selection};
}

TEST(ScorePolicy, EqualScoresGiveExactlyTheOrderOfLru) {
  for (const auto selection : {VictimSelection::kScan, VictimSelection::kBatch}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      Rng rng(seed);
      constexpr int32_t kBlocks = 40;
      TablePolicy policy(Options(kBlocks, selection));
      const auto lru = MakeEvictionPolicy({.name = "lru", .num_blocks = kBlocks}).value();
      enum class Is { kUnknown, kHeld, kEvictable };
      std::vector<Is> state(kBlocks, Is::kUnknown);
      for (int step = 0; step < 400; ++step) {
        const auto some = [&](Is wanted) {
          std::vector<BlockId> ids;
          for (BlockId id = 0; id < kBlocks; ++id) {
            if (state[static_cast<size_t>(id)] == wanted && rng.Below(3) == 0) {
              ids.push_back(id);
            }
          }
          std::reverse(ids.begin(), ids.end());
          return ids;
        };
        const auto set = [&](const std::vector<BlockId>& ids, Is is) {
          for (const BlockId id : ids) {
            state[static_cast<size_t>(id)] = is;
          }
        };
        switch (rng.Below(4)) {
          case 0:
            for (const BlockId id : some(Is::kUnknown)) {
              policy.Track({.block = id});
              lru->Track({.block = id});
              state[static_cast<size_t>(id)] = Is::kHeld;
            }
            break;
          case 1: {
            const auto ids = some(Is::kHeld);
            policy.Release(ids, {});
            lru->Release(ids, {});
            set(ids, Is::kEvictable);
            break;
          }
          case 2: {
            const auto ids = some(Is::kEvictable);
            policy.Hit(ids, {});
            policy.Touch(ids, {});
            lru->Touch(ids, {});
            set(ids, Is::kHeld);
            break;
          }
          default: {
            const auto evictable = static_cast<uint64_t>(lru->stats().evictable);
            const size_t count = rng.Below(evictable + 1);
            const auto want = lru->SelectVictims(count, step);
            ASSERT_EQ(policy.SelectVictims(count, step), want);
            set(want, Is::kUnknown);
          }
        }
        ASSERT_EQ(policy.stats().evictable, lru->stats().evictable);
        ASSERT_EQ(policy.stats().tracked, lru->stats().tracked);
        ASSERT_EQ(policy.stats().evicted, lru->stats().evicted);
      }
    }
  }
}

TEST(ScorePolicy, TheLeastScoresGoFirstWhicheverWayTheyAreFound) {
  for (const auto selection :
       {VictimSelection::kAuto, VictimSelection::kScan, VictimSelection::kBatch}) {
    TablePolicy policy(Options(6, selection));
    for (BlockId id = 0; id < 6; ++id) {
      policy.Track({.block = id});
    }
    policy.scores = {{0, 3}, {1, 1}, {2, 1}, {3, -5}, {4, 9}, {5, 1}};
    policy.Release(std::vector<BlockId>{0, 2, 1, 3, 4}, {});  // 5 stays held
    EXPECT_THAT(policy.SelectVictims(4, 0), testing::ElementsAre(3, 2, 1, 0));
    EXPECT_THAT(policy.SelectVictims(1, 0), testing::ElementsAre(4));
  }
}

}  // namespace
}  // namespace kvik::kv
