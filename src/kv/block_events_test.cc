// SPDX-License-Identifier: Apache-2.0
#include "kv/block_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "kv/kv_cache.h"

namespace kvik::kv {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int32_t kBlock = 4;

BlockHash Named(uint8_t name) {
  BlockHash hash;
  hash.bytes[0] = name;
  return hash;
}

TEST(BlockEventRecorder, RunsOfAPrefixBecomeOneEvent) {
  BlockEventRecorder recorder;
  const std::vector<TokenId> tokens = {1, 2, 3, 4};
  const ExtraKeys extra{"adapter", "salt"};
  const BlockHash one = Named(1);
  const BlockHash two = Named(2);
  recorder.Stored(one, nullptr, tokens, extra);
  recorder.Stored(two, &one, tokens, extra);
  recorder.Stored(Named(4), &one, tokens, extra);  // another branch
  recorder.Removed(one);
  recorder.Removed(two);
  recorder.Stored(one, nullptr, {}, extra);
  recorder.Stored(two, &one, tokens, extra);  // one with tokens does not join one without
  const std::vector<BlockEvent> events = recorder.Take();
  ASSERT_EQ(events.size(), 5U);
  EXPECT_THAT(events[0].blocks, ElementsAre(one, two));
  EXPECT_FALSE(events[0].parent);
  EXPECT_THAT(events[0].tokens, ElementsAre(1, 2, 3, 4, 1, 2, 3, 4));
  EXPECT_EQ(events[0].extra.cache_salt, "salt");
  EXPECT_EQ(events[1].parent, one);
  EXPECT_EQ(events[2].kind, BlockEventKind::kRemoved);
  EXPECT_THAT(events[2].blocks, ElementsAre(one, two));
  EXPECT_THAT(events[3].tokens, IsEmpty());
  EXPECT_EQ(events[4].parent, one);
  EXPECT_THAT(recorder.Take(), IsEmpty());
}

TEST(BlockEventRecorder, WhatWasBeforeAClearingIsNotTold) {
  BlockEventRecorder recorder;
  recorder.Stored(Named(1), nullptr, {}, {});
  recorder.Cleared();
  recorder.Stored(Named(2), nullptr, {}, {});
  const std::vector<BlockEvent> events = recorder.Take();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].kind, BlockEventKind::kCleared);
  EXPECT_THAT(events[1].blocks, ElementsAre(Named(2)));
}

CacheOptions Options(const MinQuality& announce) {
  CacheOptions options;
  options.num_blocks = 24;
  options.block_size_tokens = kBlock;
  options.numerics = "test";
  options.policy.name = "lru";
  options.announce = announce;
  return options;
}

TEST(BlockEvents, NothingIsRecordedUnlessAskedFor) {
  CacheOptions options = Options({});
  options.announce.reset();
  auto cache = KvCache::Create(options).value();
  ASSERT_TRUE(cache->Import({}, {}, 0));
  EXPECT_THAT(cache->TakeBlockEvents(), IsEmpty());
}

// Whoever follows the events knows, after every operation, exactly which contents a request of the
// announced quality would find; parent and tokens are those of the prompt.
class Follower {
 public:
  explicit Follower(const BlockHasher& hasher) : hasher_(hasher) {}

  void Take(KvCache& cache) {
    for (const BlockEvent& event : cache.TakeBlockEvents()) {
      EXPECT_EQ(event.medium, BlockMedium::kCache);
      if (event.kind == BlockEventKind::kCleared) {
        held_.clear();
        continue;
      }
      BlockHash parent = event.parent.value_or(hasher_.root());
      const std::span<const TokenId> tokens = event.tokens;
      for (size_t i = 0; i < event.blocks.size(); ++i) {
        const BlockHash& block = event.blocks[i];
        if (event.kind == BlockEventKind::kRemoved) {
          EXPECT_EQ(held_.erase(block.bytes), 1U);
          continue;
        }
        EXPECT_TRUE(held_.insert(block.bytes).second);
        EXPECT_EQ(hasher_.HashBlock(parent, tokens.subspan(i * kBlock, kBlock), event.extra,
                                    i == 0 && !event.parent),
                  block);
        parent = block;
      }
    }
  }
  [[nodiscard]] bool Holds(const ContentKey& key) const { return held_.contains(key.hash.bytes); }
  [[nodiscard]] size_t size() const { return held_.size(); }

 private:
  const BlockHasher& hasher_;
  std::set<std::array<uint8_t, 32>> held_;
};

TEST(BlockEventsProperty, FollowTheCacheThroughRandomUse) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const MinQuality announce = seed % 2 == 0 ? MinQuality{true, 0.9F} : MinQuality{};
    auto cache = KvCache::Create(Options(announce)).value();
    const BlockHasher hasher{HashOptions{}};
    Follower follower(hasher);
    std::vector<std::unique_ptr<Sequence>> running;
    std::vector<BlockId> loading;
    std::vector<ContentKey> known;
    const auto check = [&] {
      follower.Take(*cache);
      size_t held = 0;
      std::set<std::array<uint8_t, 32>> distinct;
      for (const ContentKey& key : known) {
        ASSERT_EQ(follower.Holds(key), cache->index().Find(key, announce) != kNoBlock);
        held += follower.Holds(key) && distinct.insert(key.hash.bytes).second ? 1 : 0;
      }
      ASSERT_EQ(follower.size(), held);
    };
    for (int step = 0; step < 300; ++step) {
      switch (rng.Below(8)) {
        case 0:
        case 1: {  // prompts that share beginnings
          std::vector<TokenId> tokens;
          const auto length = static_cast<int32_t>(1 + rng.Below(30));
          for (int32_t i = 0; i < length; ++i) {
            tokens.push_back(i < 8 ? i : static_cast<TokenId>(rng.Below(2)));
          }
          const ExtraKeys extra{"", rng.Below(3) == 0 ? "salt" : ""};
          HashChain chain(extra, kBlock);
          chain.Extend(hasher, tokens);
          known.insert(known.end(), chain.keys().begin(), chain.keys().end());
          const MinQuality accepts = rng.Below(2) == 0 ? MinQuality{true, 0.5F} : MinQuality{};
          auto sequence = std::make_unique<Sequence>(std::move(tokens), extra, kBlock, accepts);
          const AdmissionPlan plan = cache->Plan(*sequence, sequence->num_tokens());
          if (cache->Admit(*sequence, plan) == AdmitOutcome::kAdmitted) {
            running.push_back(std::move(sequence));
          }
          break;
        }
        case 2:
        case 3:
          for (const auto& sequence : running) {
            const auto runs = sequence->NextRuns(static_cast<int32_t>(1 + rng.Below(9)));
            cache->Allocate(*sequence, runs);
            cache->Commit(*sequence, runs);
          }
          break;
        case 4:
          if (!running.empty()) {
            const size_t i = rng.Below(running.size());
            cache->Release(*running[i]);
            running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
          }
          break;
        case 5:
          if (!running.empty()) {
            Sequence& sequence = *running[rng.Below(running.size())];
            const std::vector<BlockRange> missing = cache->MissingBlocks(sequence);
            if (!missing.empty()) {
              const auto blocks = cache->BeginLoad(sequence, missing.back());
              loading.insert(loading.end(), blocks.begin(), blocks.end());
            }
          }
          break;
        case 6:
          while (!loading.empty()) {
            const uint64_t how = rng.Below(5);
            const std::optional<BlockQuality> quality =
                how == 0   ? std::nullopt
                : how == 1 ? std::optional(BlockQuality{Fidelity::kLossy, 0.95F})
                : how == 2 ? std::optional(BlockQuality{Fidelity::kLossy, 0.6F})
                           : std::optional(BlockQuality{});
            (void)cache->EndLoad(loading.back(), quality);
            loading.pop_back();
          }
          break;
        default:
          if (rng.Below(10) == 0) {
            cache->Clear();
          } else {
            cache->EvictAtRandom(rng, 0.3);
          }
      }
      ASSERT_NO_FATAL_FAILURE(check());
    }
    for (const BlockId block : loading) {
      (void)cache->EndLoad(block, std::nullopt);
    }
    for (const auto& sequence : running) {
      cache->Release(*sequence);
    }
    cache->Clear();
    ASSERT_NO_FATAL_FAILURE(check());
    EXPECT_EQ(follower.size(), 0U);
    EXPECT_GT(known.size(), 50U);
  }
}

}  // namespace
}  // namespace kvik::kv
