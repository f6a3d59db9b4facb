// SPDX-License-Identifier: Apache-2.0
#include "server/block_holders.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace kvik::server {
namespace {

using events::ReceivedEvent;
using kv::BlockEventKind;
using kv::BlockMedium;

ReceivedEvent Event(BlockEventKind kind, std::vector<uint64_t> blocks,
                    BlockMedium medium = BlockMedium::kCache) {
  return {kind, medium, std::move(blocks)};
}

void Tell(BlockHolders& holders, uint64_t node, const ReceivedEvent& event) {
  holders.OnEvents(node, {&event, 1});
}

TEST(BlockHolders, KnowsTheLongestPrefixOfEachNode) {
  BlockHolders holders(100);
  const std::vector<uint64_t> prompt = {1, 2, 3, 4};
  EXPECT_FALSE(holders.PrefixAt(7, prompt));
  EXPECT_FALSE(holders.HeldBy(7));
  Tell(holders, 7, Event(BlockEventKind::kStored, {1, 2, 4}));
  Tell(holders, 8, Event(BlockEventKind::kStored, {2, 3, 4}));
  EXPECT_EQ(holders.PrefixAt(7, prompt), 2);
  EXPECT_EQ(holders.PrefixAt(8, prompt), 0);
  Tell(holders, 7, Event(BlockEventKind::kStored, {3}));
  EXPECT_EQ(holders.PrefixAt(7, prompt), 4);
  Tell(holders, 7, Event(BlockEventKind::kRemoved, {2, 99}));
  EXPECT_EQ(holders.PrefixAt(7, prompt), 1);
  Tell(holders, 7, Event(BlockEventKind::kCleared, {}));
  EXPECT_EQ(holders.PrefixAt(7, prompt), 0);  // it is known to hold nothing
  holders.OnForget(8);
  EXPECT_FALSE(holders.PrefixAt(8, prompt));
}

TEST(BlockHolders, ABlockIsHeldAsLongAsOneMediumHasIt) {
  BlockHolders holders(100);
  const std::vector<uint64_t> prompt = {1};
  Tell(holders, 7, Event(BlockEventKind::kStored, {1}));
  Tell(holders, 7, Event(BlockEventKind::kStored, {1}, BlockMedium::kDisk));
  Tell(holders, 7, Event(BlockEventKind::kRemoved, {1}));
  EXPECT_EQ(holders.PrefixAt(7, prompt), 1);
  Tell(holders, 7, Event(BlockEventKind::kRemoved, {1}, BlockMedium::kDisk));
  EXPECT_EQ(holders.PrefixAt(7, prompt), 0);
}

TEST(BlockHolders, RemembersOnlySoMany) {
  BlockHolders holders(3000);
  std::vector<uint64_t> blocks;
  for (uint64_t block = 1; block <= 5000; ++block) {
    blocks.push_back(block);
  }
  Tell(holders, 1, Event(BlockEventKind::kStored, {1, 2}));
  Tell(holders, 2, Event(BlockEventKind::kStored, blocks));
  EXPECT_EQ(holders.HeldBy(2), 2998);
  EXPECT_EQ(holders.PrefixAt(2, blocks), 2998);
  Tell(holders, 1, Event(BlockEventKind::kStored, {3}));
  EXPECT_EQ(holders.HeldBy(1), 2);
  holders.OnForget(2);
  Tell(holders, 1, Event(BlockEventKind::kStored, {3}));
  EXPECT_EQ(holders.HeldBy(1), 3);
}

TEST(BlockHoldersProperty, AgreesWithSets) {
  Rng rng(1);
  BlockHolders holders(1'000'000);
  std::set<std::pair<uint64_t, uint64_t>> truth[2];  // [node] of medium and block
  for (int step = 0; step < 20'000; ++step) {
    const uint64_t node = rng.Below(2);
    const uint64_t medium = rng.Below(3);
    const uint64_t block = rng.Below(20);
    switch (rng.Below(50)) {
      case 0:
        Tell(holders, node, Event(BlockEventKind::kCleared, {}));
        truth[node].clear();
        break;
      default:
        if (rng.Below(2) == 0) {
          Tell(holders, node,
               Event(BlockEventKind::kStored, {block}, static_cast<BlockMedium>(medium)));
          truth[node].insert({medium, block});
        } else {
          Tell(holders, node,
               Event(BlockEventKind::kRemoved, {block}, static_cast<BlockMedium>(medium)));
          truth[node].erase({medium, block});
        }
    }
    std::set<uint64_t> held;
    for (const auto& [where, what] : truth[node]) {
      held.insert(what);
    }
    ASSERT_EQ(holders.HeldBy(node), static_cast<int64_t>(held.size()));
    std::vector<uint64_t> prompt = {0, 1, 2, 3};
    int64_t prefix = 0;
    while (prefix < 4 && held.contains(static_cast<uint64_t>(prefix))) {
      ++prefix;
    }
    ASSERT_EQ(holders.PrefixAt(node, prompt), prefix);
  }
}

}  // namespace
}  // namespace kvik::server
