// SPDX-License-Identifier: Apache-2.0
#include "events/history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace kvik::events {
namespace {

using kv::BlockEvent;
using kv::BlockEventKind;
using kv::BlockHash;
using kv::BlockMedium;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

BlockHash Named(uint32_t name) {
  BlockHash hash;
  for (size_t i = 0; i < 4; ++i) {
    hash.bytes[15 - i] = static_cast<uint8_t>(name >> (8 * i));
  }
  hash.bytes[0] = static_cast<uint8_t>(name);
  return hash;
}

BlockEvent Stored(std::vector<uint32_t> names, uint32_t parent = 0,
                  BlockMedium medium = BlockMedium::kCache) {
  BlockEvent event;
  event.medium = medium;
  for (const uint32_t name : names) {
    event.blocks.push_back(Named(name));
    event.tokens.push_back(static_cast<TokenId>(name));
  }
  if (parent != 0) {
    event.parent = Named(parent);
  }
  return event;
}
BlockEvent Removed(std::vector<uint32_t> names, BlockMedium medium = BlockMedium::kCache) {
  BlockEvent event = Stored(std::move(names), 0, medium);
  event.kind = BlockEventKind::kRemoved;
  event.tokens.clear();
  return event;
}
BlockEvent Cleared(BlockMedium medium = BlockMedium::kCache) {
  BlockEvent event;
  event.kind = BlockEventKind::kCleared;
  event.medium = medium;
  return event;
}

ReceivedBatch Decoded(const EventHistory::Message& message) {
  return DecodeBatch(std::as_bytes(std::span(*message.payload))).value();
}

// Medium and name.
using Held = std::set<std::pair<BlockMedium, uint64_t>>;

void Apply(const ReceivedBatch& batch, Held& held) {
  for (const ReceivedEvent& event : batch.events) {
    if (event.kind == BlockEventKind::kCleared) {
      held.clear();
    }
    for (const uint64_t block : event.blocks) {
      if (event.kind == BlockEventKind::kStored) {
        held.insert({event.medium, block});
      } else {
        held.erase({event.medium, block});
      }
    }
  }
}

TEST(EventHistory, OnlyTheFirstSourceAndTheLastAreNews) {
  EventHistory history({});
  const auto first = history.Append(1, {Stored({1, 2, 3})}, 1);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->sequence, 0U);
  const auto second = history.Append(1, {Stored({2}, 1), Stored({1, 2, 4, 5})}, 1);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->sequence, 1U);
  ASSERT_THAT(Decoded(*second).events, SizeIs(1));
  EXPECT_THAT(Decoded(*second).events[0].blocks, ElementsAre(4, 5));
  EXPECT_FALSE(history.Append(1, {Removed({1, 2, 77})}, 1));  // others hold them; 77 nobody knows
  const auto third = history.Append(1, {Removed({2, 1}), Removed({2})}, 1);
  EXPECT_THAT(Decoded(third.value()).events[0].blocks, ElementsAre(1));
  EXPECT_THAT(Decoded(third.value()).events[1].blocks, ElementsAre(2));
  EXPECT_EQ(history.next_sequence(), 3U);
  EXPECT_EQ(history.num_blocks(), 3U);
}

TEST(EventHistory, ClearingOneMediumIsRemovingItsBlocksWhileOthersHoldSome) {
  EventHistory history({});
  (void)history.Append(1, {Stored({1, 2}), Stored({1}, 0, BlockMedium::kMemory)}, 1);
  const ReceivedBatch one = Decoded(history.Append(1, {Cleared()}, 1).value());
  ASSERT_THAT(one.events, SizeIs(1));
  EXPECT_EQ(one.events[0].kind, BlockEventKind::kRemoved);
  EXPECT_THAT(one.events[0].blocks, testing::UnorderedElementsAre(1, 2));
  EXPECT_FALSE(history.Append(1, {Cleared()}, 1));
  const ReceivedBatch all = Decoded(history.Append(1, {Cleared(BlockMedium::kMemory)}, 1).value());
  ASSERT_THAT(all.events, SizeIs(1));
  EXPECT_EQ(all.events[0].kind, BlockEventKind::kCleared);
}

TEST(EventHistory, GivesBatchesAgainWhileTheyAreKept) {
  EventHistory history({.max_batches = 3});
  EXPECT_THAT(history.From(0, 1, 1), IsEmpty());
  for (uint32_t i = 1; i <= 5; ++i) {
    (void)history.Append(1, {Stored({i})}, 1);
  }
  EXPECT_EQ(history.num_batches(), 3U);
  EXPECT_THAT(history.From(5, 1, 1), IsEmpty());
  const auto kept = history.From(3, 1, 1);
  ASSERT_THAT(kept, SizeIs(2));
  EXPECT_EQ(kept[0].sequence, 3U);
  EXPECT_THAT(Decoded(kept[1]).events[0].blocks, ElementsAre(5));
  // What is not kept any more: everything, as of the last batch.
  const auto over = history.From(1, 1, 1);
  ASSERT_THAT(over, SizeIs(1));
  EXPECT_EQ(over[0].sequence, 4U);
  const ReceivedBatch batch = Decoded(over[0]);
  EXPECT_EQ(batch.events[0].kind, BlockEventKind::kCleared);
  Held held;
  Apply(batch, held);
  EXPECT_THAT(held, SizeIs(5));
}

TEST(EventHistory, KeepsNoMoreBytesThanAllowed) {
  EventHistory history({.max_bytes = 2000});
  for (uint32_t i = 1; i <= 100; ++i) {
    (void)history.Append(1, {Stored({i, i + 1000, i + 2000})}, 1);
  }
  EXPECT_LT(history.num_batches(), 12U);
  EXPECT_GT(history.num_batches(), 3U);
}

TEST(EventHistory, AfterALossEverybodyBeginsAnew) {
  EventHistory history({});
  (void)history.Append(1, {Stored({1, 2})}, 1);
  const EventHistory::Message message = history.AppendAfterLoss(1, {Stored({3}), Removed({1})}, 1);
  EXPECT_EQ(message.sequence, 2U);  // 1 is a gap
  const ReceivedBatch batch = Decoded(message);
  ASSERT_THAT(batch.events, SizeIs(2));
  EXPECT_EQ(batch.events[0].kind, BlockEventKind::kCleared);
  EXPECT_THAT(batch.events[1].blocks, ElementsAre(3));
  const auto again = history.From(1, 1, 1);
  ASSERT_THAT(again, SizeIs(1));
  Held held = {{BlockMedium::kCache, 1}};
  Apply(Decoded(again[0]), held);
  EXPECT_EQ(held, (Held{{BlockMedium::kCache, 3}}));
}

// A follower that takes what comes, misses some, and asks for it or for everything: it always knows
// what is held, and hears of parents before their children when it begins anew.
TEST(EventHistoryProperty, AFollowerThatAsksKnowsWhatIsHeld) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    EventHistory history({.max_batches = 1 + rng.Below(8)});
    std::map<std::pair<BlockMedium, uint64_t>, int> truth;  // sources
    Held known;
    uint64_t next = 0;
    for (int step = 0; step < 200; ++step) {
      std::vector<BlockEvent> events;
      for (uint64_t n = rng.Below(4); n > 0; --n) {
        const auto medium = static_cast<BlockMedium>(rng.Below(2));
        if (rng.Below(20) == 0) {
          events.push_back(Cleared(medium));
          std::erase_if(truth, [&](const auto& e) { return e.first.first == medium; });
        } else if (rng.Below(2) == 0) {
          std::vector<uint32_t> run;
          auto name = static_cast<uint32_t>(1 + rng.Below(40));
          const uint32_t parent = name / 2;  // block n descends from n / 2
          for (uint64_t length = 1 + rng.Below(4); length > 0; --length, name *= 2) {
            run.push_back(name);
            ++truth[{medium, name}];
          }
          events.push_back(Stored(run, parent, medium));
        } else if (!truth.empty()) {
          auto it = truth.begin();
          std::advance(it, static_cast<std::ptrdiff_t>(rng.Below(truth.size())));
          events.push_back(Removed({static_cast<uint32_t>(it->first.second)}, it->first.first));
          if (--it->second == 0) {
            truth.erase(it);
          }
        }
      }
      const auto message = history.Append(1, std::move(events), 1);
      if (message && message->sequence == next && rng.Below(3) != 0) {
        Apply(Decoded(*message), known);
        ++next;
      }
      if (rng.Below(4) != 0) {
        continue;
      }
      for (const EventHistory::Message& again : history.From(next, 1, 1)) {
        Apply(Decoded(again), known);
        next = again.sequence + 1;
      }
      Held held;
      for (const auto& [place, sources] : truth) {
        held.insert(place);
      }
      ASSERT_EQ(known, held);
      ASSERT_EQ(next, history.next_sequence());
    }
  }
}

TEST(EventHistory, StartsOverWithParentsBeforeTheirChildren) {
  EventHistory history({.max_batches = 1});
  (void)history.Append(1, {Stored({8}, 4), Stored({9}, 4), Stored({4}, 2)}, 1);
  (void)history.Append(1, {Stored({1, 2}), Stored({5}, 2)}, 1);
  const auto over = history.From(0, 1, 1);
  ASSERT_THAT(over, SizeIs(1));
  const ReceivedBatch batch = Decoded(over[0]);
  std::vector<uint64_t> order;
  for (const ReceivedEvent& event : batch.events) {
    order.insert(order.end(), event.blocks.begin(), event.blocks.end());
  }
  const auto at = [&](uint64_t name) { return std::find(order.begin(), order.end(), name); };
  ASSERT_THAT(order, SizeIs(6));
  for (const auto& [parent, child] :
       std::vector<std::pair<uint64_t, uint64_t>>{{1, 2}, {2, 4}, {2, 5}, {4, 8}, {4, 9}}) {
    EXPECT_LT(at(parent), at(child)) << parent << " " << child;
  }
}

}  // namespace
}  // namespace kvik::events
