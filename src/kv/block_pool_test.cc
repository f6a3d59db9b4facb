// SPDX-License-Identifier: Apache-2.0
#include "kv/block_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "base/rng.h"

namespace kvik::kv {
namespace {

TEST(BlockPool, HandsOutEveryBlockOnceAndThenNothing) {
  BlockPool pool(5);
  std::set<BlockId> seen;
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(seen.insert(pool.AllocateFilling().value()).second);
  }
  EXPECT_FALSE(pool.AllocateFilling().has_value());
  EXPECT_EQ(pool.num_filling(), 5);
  pool.CheckInvariant();
}

TEST(BlockPool, LastUnrefMakesASealedBlockCached) {
  BlockPool pool(2);
  const BlockId id = pool.AllocateFilling().value();
  EXPECT_EQ(pool.state(id), BlockState::kFilling);
  pool.Seal(id);
  pool.Ref(id);
  EXPECT_FALSE(pool.Unref(id));
  EXPECT_EQ(pool.state(id), BlockState::kReferenced);
  EXPECT_TRUE(pool.Unref(id));
  EXPECT_EQ(pool.state(id), BlockState::kCached);
  pool.Ref(id);
  EXPECT_EQ(pool.state(id), BlockState::kReferenced);
  EXPECT_EQ(pool.ref_count(id), 1);
}

TEST(BlockPool, ReusesTheBlockFreedLast) {
  BlockPool pool(4);
  const BlockId a = pool.AllocateFilling().value();
  const BlockId b = pool.AllocateFilling().value();
  pool.Free(a);
  pool.Free(b);
  EXPECT_EQ(pool.AllocateFilling(), b);
  EXPECT_EQ(pool.AllocateFilling(), a);
}

TEST(BlockPoolDeathTest, MisuseAborts) {
  BlockPool pool(2);
  const BlockId id = pool.AllocateFilling().value();
  EXPECT_DEATH(pool.Ref(id), "not sealed");
  EXPECT_DEATH((void)pool.Unref(id), "nobody holds");
  pool.Seal(id);
  EXPECT_DEATH(pool.Seal(id), "nobody fills");
  EXPECT_DEATH(pool.Free(id), "free or shared");
  EXPECT_DEATH(pool.Ref(7), "of 2");
}

// Any sequence of legal operations leaves every block in the state a map of states says.
TEST(BlockPool, RandomOperationsAgreeWithAMapOfStates) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    const auto total = static_cast<int32_t>(rng.Range(1, 40));
    BlockPool pool(total);
    struct Model {
      BlockState state = BlockState::kFree;
      int refs = 0;
    };
    std::map<BlockId, Model> model;
    for (BlockId id = 0; id < total; ++id) {
      model[id] = {};
    }
    for (int step = 0; step < 2000; ++step) {
      const auto id = static_cast<BlockId>(rng.Below(static_cast<uint64_t>(total)));
      Model& block = model[id];
      switch (rng.Below(5)) {
        case 0: {
          const auto got = pool.AllocateFilling();
          if (got) {
            ASSERT_EQ(model[*got].state, BlockState::kFree);
            model[*got] = {BlockState::kFilling, 1};
          } else {
            for (const auto& [other, state] : model) {
              ASSERT_NE(state.state, BlockState::kFree);
            }
          }
          break;
        }
        case 1:
          if (block.state == BlockState::kFilling) {
            pool.Seal(id);
            block.state = BlockState::kReferenced;
          }
          break;
        case 2:
          if (block.state == BlockState::kReferenced || block.state == BlockState::kCached) {
            pool.Ref(id);
            block = {BlockState::kReferenced, block.refs + 1};
          }
          break;
        case 3:
          if (block.state == BlockState::kReferenced) {
            const bool last = --block.refs == 0;
            ASSERT_EQ(pool.Unref(id), last);
            if (last) {
              block.state = BlockState::kCached;
            }
          }
          break;
        default:
          if (block.state == BlockState::kFilling || block.state == BlockState::kCached) {
            pool.Free(id);
            block = {};
          }
      }
      pool.CheckInvariant();
      for (const auto& [other, state] : model) {
        ASSERT_EQ(pool.state(other), state.state);
        ASSERT_EQ(pool.ref_count(other), state.refs);
      }
    }
  }
}

}  // namespace
}  // namespace kvik::kv
