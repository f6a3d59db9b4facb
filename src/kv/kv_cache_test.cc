// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <optional>
#include <set>

#include "base/rng.h"
#include "kv/testing/each_policy.h"

namespace kvik::kv {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int32_t kBlock = 16;

CacheOptions Options(int32_t num_blocks, const std::string& policy = "lru") {
  CacheOptions options;
  options.num_blocks = num_blocks;
  options.hash.model = "m";
  options.numerics = "test numerics";
  options.policy.name = policy;
  options.policy.seed = 3;
  return options;
}

std::unique_ptr<KvCache> MakeCache(int32_t num_blocks, const std::string& policy = "lru") {
  return KvCache::Create(Options(num_blocks, policy)).value();
}

// `first` makes prompts differ from their first block on.
std::vector<TokenId> Prompt(int32_t num_tokens, TokenId first = 1) {
  std::vector<TokenId> tokens(static_cast<size_t>(num_tokens));
  std::iota(tokens.begin(), tokens.end(), first * 1000);
  return tokens;
}

Sequence MakeSequence(int32_t num_tokens, TokenId first = 1, const ExtraKeys& extra = {}) {
  return {Prompt(num_tokens, first), extra, kBlock};
}

void Admit(KvCache& cache, Sequence& sequence, int32_t need_tokens = 0) {
  const auto plan = cache.Plan(sequence, std::max(need_tokens, sequence.num_tokens()));
  ASSERT_EQ(cache.Admit(sequence, plan), AdmitOutcome::kAdmitted);
}

// Computes all that is left in chunks of at most `chunk` tokens.
void Compute(KvCache& cache, Sequence& sequence, int32_t chunk = 1000) {
  while (sequence.num_to_compute() > 0) {
    const auto runs = sequence.NextRuns(chunk);
    cache.Allocate(sequence, runs);
    cache.Commit(sequence, runs);
    cache.CheckInvariant();
  }
}

// Admits, computes and releases: leaves the prompt's full blocks in the cache.
void Fill(KvCache& cache, int32_t num_tokens, TokenId first = 1, const ExtraKeys& extra = {}) {
  Sequence sequence = MakeSequence(num_tokens, first, extra);
  Admit(cache, sequence);
  Compute(cache, sequence);
  cache.Release(sequence);
  cache.CheckInvariant();
}

// The blocks a fresh sequence with this prompt would hit.
std::vector<BlockId> Resident(const KvCache& cache, int32_t num_tokens, TokenId first = 1,
                              const ExtraKeys& extra = {}) {
  Sequence sequence = MakeSequence(num_tokens, first, extra);
  return cache.Plan(sequence, num_tokens).hits.blocks;
}

TEST(KvCache, CreateNamesTheWrongOption) {
  CacheOptions options = Options(0);
  EXPECT_NE(KvCache::Create(options).error().message.find("num_blocks"), std::string::npos);
  options = Options(4);
  options.block_size_tokens = 0;
  EXPECT_NE(KvCache::Create(options).error().message.find("block_size_tokens"), std::string::npos);
  options = Options(2'000'000'000);
  EXPECT_NE(KvCache::Create(options).error().message.find("num_blocks"), std::string::npos);
  options = Options(4);
  options.geometry = KvGeometry{1, 1, 64, 2 * kBlock, KvDtype::kBf16};
  EXPECT_NE(KvCache::Create(options).error().message.find("block_size_tokens"), std::string::npos);
  options = Options(4);
  options.policy.name = "none";
  EXPECT_NE(KvCache::Create(options).error().message.find("choose one of lru"), std::string::npos);
}

TEST(KvCache, ASecondRequestReusesAllFullBlocksButTheOneOfItsLastToken) {
  for (const int32_t length : {3 * kBlock - 1, 3 * kBlock, 3 * kBlock + 1}) {
    const auto cache = MakeCache(16);
    Fill(*cache, length);
    Sequence again = MakeSequence(length);
    Admit(*cache, again);
    EXPECT_EQ(again.num_hit_tokens(), (length - 1) / kBlock * kBlock) << length;
    EXPECT_EQ(again.num_to_compute(), length - (length - 1) / kBlock * kBlock);
    EXPECT_THAT(again.NextRuns(100),
                ElementsAre(TokenRun{again.num_hit_tokens(), again.num_to_compute()}));
  }
}

TEST(KvCache, HitsBehindGapsAreUsedAndTheComputeListSkipsThem) {
  const auto cache = MakeCache(16);
  Fill(*cache, 6 * kBlock + 4);
  const auto blocks = Resident(*cache, 6 * kBlock + 4);
  cache->Evict(blocks[0]);
  cache->Evict(blocks[3]);
  cache->Evict(blocks[4]);

  Sequence sequence = MakeSequence(6 * kBlock + 4);
  Admit(*cache, sequence);
  EXPECT_THAT(sequence.hit_runs(), ElementsAre(ResidentRun{1, 2}, ResidentRun{5, 1}));
  EXPECT_EQ(sequence.num_hit_tokens(), 3 * kBlock);
  EXPECT_EQ(sequence.num_to_compute(), 3 * kBlock + 4);
  EXPECT_THAT(sequence.NextRuns(10), ElementsAre(TokenRun{0, 10}));
  EXPECT_THAT(sequence.NextRuns(kBlock + 5),
              ElementsAre(TokenRun{0, kBlock}, TokenRun{3 * kBlock, 5}));
  EXPECT_THAT(
      sequence.NextRuns(1000),
      ElementsAre(TokenRun{0, kBlock}, TokenRun{3 * kBlock, 2 * kBlock}, TokenRun{6 * kBlock, 4}));
  Compute(*cache, sequence, 7);
  EXPECT_EQ(sequence.next_pos(), sequence.num_tokens());
  EXPECT_EQ(sequence.num_to_compute(), 0);
}

TEST(KvCache, AdmissionChangesNothingWhenThereIsNoRoom) {
  const auto cache = MakeCache(4);
  Fill(*cache, 2 * kBlock + 1, 1);
  Sequence big = MakeSequence(5 * kBlock, 1);
  const auto plan = cache->Plan(big, 5 * kBlock);
  EXPECT_EQ(plan.hits.num_hits, 2);
  EXPECT_EQ(cache->BlocksTaken(plan), 5);
  EXPECT_EQ(cache->Admit(big, plan), AdmitOutcome::kNoRoom);
  EXPECT_FALSE(big.admitted());
  EXPECT_EQ(cache->pool().num_cached(), 2);
  EXPECT_EQ(cache->AvailableBlocks(), 4);
  cache->CheckInvariant();
}

TEST(KvCache, HitsThatNobodyHoldsCountAgainstTheRoom) {
  const auto cache = MakeCache(4);
  Fill(*cache, 3 * kBlock + 1, 1);
  Sequence other = MakeSequence(2 * kBlock, 2);
  Admit(*cache, other);  // reserves two of four: one hit would have to go
  Sequence again = MakeSequence(3 * kBlock + 1, 1);
  EXPECT_EQ(cache->Admit(again, cache->Plan(again, 3 * kBlock + 1)), AdmitOutcome::kNoRoom);
  cache->Release(other);
  EXPECT_EQ(cache->Admit(again, cache->Plan(again, 3 * kBlock + 1)), AdmitOutcome::kAdmitted);
}

TEST(KvCache, AReservationIsNeverGivenToAnother) {
  const auto cache = MakeCache(4);
  Sequence a = MakeSequence(kBlock, 1);
  Admit(*cache, a, 3 * kBlock);
  EXPECT_EQ(cache->AvailableBlocks(), 1);
  EXPECT_EQ(cache->pool().num_free(), 4);  // counted, not taken
  Sequence b = MakeSequence(2 * kBlock, 2);
  EXPECT_EQ(cache->Admit(b, cache->Plan(b, 2 * kBlock)), AdmitOutcome::kNoRoom);
  EXPECT_FALSE(cache->Reserve(a, 5 * kBlock));
  EXPECT_TRUE(cache->Reserve(a, 4 * kBlock));
  EXPECT_TRUE(cache->Reserve(a, 2 * kBlock));
  EXPECT_EQ(cache->AvailableBlocks(), 0);
  cache->Release(a);
  EXPECT_EQ(cache->AvailableBlocks(), 4);
}

TEST(KvCache, GeneratedTokensAreSealedAndPublishedToo) {
  const auto cache = MakeCache(8);
  Sequence sequence = MakeSequence(kBlock);
  Admit(*cache, sequence, 3 * kBlock);
  Compute(*cache, sequence);
  for (TokenId token = 0; token < 2 * kBlock; ++token) {
    sequence.Append(1000 + kBlock + token);  // continues Prompt()
    Compute(*cache, sequence);
  }
  EXPECT_EQ(cache->stats().published, 3);
  cache->Release(sequence);
  EXPECT_EQ(MakeSequence(3 * kBlock + 1).num_tokens(), 3 * kBlock + 1);
  EXPECT_THAT(Resident(*cache, 3 * kBlock + 1), testing::Each(testing::Ne(kNoBlock)));
}

TEST(KvCache, ReleaseInTheMiddleOfABlockFreesTheUnfinishedBlock) {
  const auto cache = MakeCache(8);
  Sequence sequence = MakeSequence(3 * kBlock);
  Admit(*cache, sequence);
  const auto runs = sequence.NextRuns(kBlock + 3);
  cache->Allocate(sequence, runs);
  EXPECT_EQ(cache->pool().num_filling(), 2);
  cache->Commit(sequence, runs);
  EXPECT_EQ(cache->pool().num_filling(), 1);
  cache->Release(sequence);
  EXPECT_EQ(cache->pool().num_filling(), 0);
  EXPECT_EQ(cache->pool().num_cached(), 1);
  EXPECT_EQ(cache->stats().reserved_blocks, 0);
  cache->CheckInvariant();
}

TEST(KvCache, BlocksOfAFailedStepAreNotPublished) {
  const auto cache = MakeCache(8);
  Sequence sequence = MakeSequence(3 * kBlock);
  Admit(*cache, sequence);
  cache->Allocate(sequence, sequence.NextRuns(100));
  cache->Release(sequence);  // never committed
  EXPECT_EQ(cache->pool().num_free(), 8);
  EXPECT_EQ(cache->index().size(), 0U);
  cache->CheckInvariant();
}

TEST(KvCache, SaltsAndAdaptersSeeOnlyTheirOwnBlocks) {
  const auto cache = MakeCache(32);
  const int32_t length = 4 * kBlock + 1;
  const auto hits = [&](const ExtraKeys& extra) {
    const auto blocks = Resident(*cache, length, 1, extra);
    return std::count_if(blocks.begin(), blocks.end(), [](BlockId b) { return b != kNoBlock; });
  };
  Fill(*cache, length, 1, {"", "A"});
  EXPECT_EQ(hits({"", "B"}), 0);
  EXPECT_EQ(hits({"", ""}), 0);
  EXPECT_EQ(hits({"A", ""}), 0);
  EXPECT_EQ(hits({"", "A"}), 4);
}

TEST(KvCache, WithoutPrefixCachingNothingOutlivesItsSequence) {
  CacheOptions options = Options(8);
  options.prefix_caching = false;
  const auto cache = KvCache::Create(options).value();
  Fill(*cache, 5 * kBlock);
  EXPECT_EQ(cache->pool().num_free(), 8);
  EXPECT_THAT(Resident(*cache, 5 * kBlock), IsEmpty());
}

TEST(KvCache, WithPrefixHitsOnlyTheRunFromTheBeginningIsReused) {
  CacheOptions options = Options(16);
  options.hits = HitScope::kPrefix;
  const auto cache = KvCache::Create(options).value();
  Fill(*cache, 6 * kBlock + 4);
  cache->Evict(Resident(*cache, 6 * kBlock + 4)[2]);
  Sequence sequence = MakeSequence(6 * kBlock + 4);
  Admit(*cache, sequence);
  EXPECT_EQ(sequence.num_hit_tokens(), 2 * kBlock);
  EXPECT_EQ(sequence.hit_runs(), (std::vector<ResidentRun>{{0, 2}}));
  EXPECT_EQ(sequence.num_to_compute(), 4 * kBlock + 4);
  Compute(*cache, sequence);
  cache->Release(sequence);
  cache->CheckInvariant();
  cache->Evict(Resident(*cache, 6 * kBlock + 4)[0]);
  EXPECT_EQ(cache->Plan(sequence, sequence.num_tokens()).hits.num_hits, 0);
}

TEST(KvCache, LruEvictsTheDeepestBlockOfTheEarliestRelease) {
  const auto cache = MakeCache(6);
  Fill(*cache, 3 * kBlock, 1);
  Fill(*cache, 3 * kBlock, 2);
  Fill(*cache, 2 * kBlock, 3);  // takes two
  EXPECT_THAT(Resident(*cache, 3 * kBlock + 1, 1),
              ElementsAre(testing::Ne(kNoBlock), kNoBlock, kNoBlock));
  EXPECT_THAT(Resident(*cache, 3 * kBlock + 1, 2), testing::Each(testing::Ne(kNoBlock)));
  EXPECT_EQ(cache->stats().evictions, 2);
}

// Whoever uses a block uses all before it, and lets go of the deepest first. The exception is
// content that two sequences compute at once, of which the second copy is nobody's parent.
TEST(KvCache, LruNeverMakesGaps) {
  int64_t evictions = 0;
  int64_t partly = 0;  // prompts of which something is gone and something is there
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    const auto cache = MakeCache(static_cast<int32_t>(rng.Range(12, 40)));
    std::vector<std::vector<TokenId>> prompts;  // trees: three roots, branches at any place
    for (TokenId i = 0; i < 20; ++i) {
      prompts.push_back(Prompt(static_cast<int32_t>(rng.Range(17, 8 * kBlock)), i % 3));
      const size_t branch = rng.Below(prompts.back().size());
      std::iota(prompts.back().begin() + static_cast<int64_t>(branch), prompts.back().end(),
                100'000 + 1000 * static_cast<TokenId>(rng.Below(6)));
    }
    std::vector<std::unique_ptr<Sequence>> live;
    const auto computes_the_same = [&](const std::vector<TokenId>& prompt) {
      return std::any_of(live.begin(), live.end(), [&](const auto& other) {
        return other->num_to_compute() > 1 && other->tokens()[0] == prompt[0];
      });
    };
    for (int step = 0; step < 500; ++step) {
      const auto& prompt = prompts[rng.Below(prompts.size())];
      if (rng.Below(3) == 0 && !computes_the_same(prompt)) {
        auto sequence = std::make_unique<Sequence>(prompt, ExtraKeys{}, kBlock);
        if (cache->Admit(*sequence, cache->Plan(*sequence, sequence->num_tokens())) ==
            AdmitOutcome::kAdmitted) {
          live.push_back(std::move(sequence));
        }
      } else if (!live.empty()) {
        const size_t which = rng.Below(live.size());
        Sequence& sequence = *live[which];
        if (sequence.num_to_compute() > 0) {
          const auto runs = sequence.NextRuns(static_cast<int32_t>(rng.Range(1, 60)));
          cache->Allocate(sequence, runs);
          cache->Commit(sequence, runs);
        }
        if (sequence.num_to_compute() == 0 || rng.Below(8) == 0) {
          cache->Release(sequence);
          live.erase(live.begin() + static_cast<int64_t>(which));
        }
      }
      for (const auto& known : prompts) {
        Sequence probe(known, {}, kBlock);
        const auto hits = cache->Plan(probe, probe.num_tokens()).hits;
        ASSERT_TRUE(hits.runs.empty() || (hits.runs.size() == 1 && hits.runs[0].first_block == 0));
        partly += hits.num_hits > 0 && hits.blocks.back() == kNoBlock ? 1 : 0;
      }
    }
    evictions += cache->stats().evictions;
  }
  EXPECT_GT(evictions, 1000);
  EXPECT_GT(partly, 1000);
}

TEST(KvCache, ClearDropsCachedBlocksAndLeavesHeldOnes) {
  const auto cache = MakeCache(8);
  Fill(*cache, 3 * kBlock, 1);
  Sequence running = MakeSequence(2 * kBlock, 2);
  Admit(*cache, running);
  Compute(*cache, running);
  EXPECT_EQ(cache->Clear(), 3);
  EXPECT_EQ(cache->pool().num_referenced(), 2);
  cache->CheckInvariant();
}

class LossyBlocks : public testing::Test {
 protected:
  // The key of block `index` of Prompt(num_tokens).
  BlockKey Key(size_t index, const char* numerics = "test numerics") {
    HashChain chain(ExtraKeys{}, kBlock);
    chain.Extend(BlockHasher(cache_->options().hash), Prompt(4 * kBlock + 1));
    return {chain.keys()[index], NumericsTag::FromDescription(numerics)};
  }
  static Sequence Tolerant(float q_min) {
    return {Prompt(4 * kBlock + 1), {}, kBlock, MinQuality{true, q_min}};
  }
  static std::unique_ptr<KvCache> MakeCacheWithMasks() {
    CacheOptions options = Options(16);
    options.geometry = KvGeometry{2, 3, 64, kBlock, KvDtype::kBf16};
    return KvCache::Create(options).value();
  }
  std::unique_ptr<KvCache> cache_ = MakeCacheWithMasks();
};

TEST_F(LossyBlocks, MasksFollowTheBlockUntilItIsFreed) {
  const BlockId lossy = cache_->Import(Key(1), {Fidelity::kLossy, 0.9F}, kBlock).value();
  EXPECT_EQ(cache_->masks()->Of(lossy), nullptr);
  cache_->masks()->Drop(lossy, 1, 2, 0, 4);
  cache_->CheckInvariant();
  Sequence reader = Tolerant(0.9F);
  Admit(*cache_, reader);
  EXPECT_EQ(reader.block_table()[1], lossy);
  Compute(*cache_, reader);
  cache_->Release(reader);
  ASSERT_NE(cache_->masks()->Of(lossy), nullptr);
  EXPECT_EQ(cache_->masks()->Of(lossy)[5], 0xFFF0U);
  cache_->Evict(lossy);
  EXPECT_TRUE(cache_->masks()->empty());
  EXPECT_EQ(cache_->Import(Key(1), {Fidelity::kLossy, 0.9F}, kBlock), lossy);
  EXPECT_EQ(cache_->masks()->Of(lossy), nullptr);
  cache_->CheckInvariant();
}

// However a block becomes free: released unfilled, sealed twice, superseded, evicted for room.
TEST_F(LossyBlocks, NoFreeBlockHasMasks) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    cache_ = MakeCacheWithMasks();
    std::vector<Sequence> sequences;
    for (int i = 0; i < 3; ++i) {
      sequences.emplace_back(Prompt(4 * kBlock + 1), ExtraKeys{}, kBlock,
                             rng.Below(2) == 0 ? MinQuality{} : MinQuality{true, 0.0F});
    }
    // Wherever it is allowed, of blocks in the states given.
    const auto drop = [&](std::initializer_list<BlockState> states) {
      for (BlockId block = 0; block < cache_->pool().num_total(); ++block) {
        const bool exact = cache_->index().Contains(block) &&
                           cache_->index().quality(block).fidelity == Fidelity::kExact;
        if (!exact && std::count(states.begin(), states.end(), cache_->pool().state(block)) > 0) {
          cache_->masks()->Drop(block, 0, 0, 0, 1);
        }
      }
    };
    for (int i = 0; i < 60; ++i) {
      Sequence& sequence = sequences[rng.Below(sequences.size())];
      if (!sequence.admitted()) {
        (void)cache_->Admit(sequence, cache_->Plan(sequence, sequence.num_tokens()));
      } else if (rng.Below(4) == 0 || sequence.num_to_compute() == 0) {
        cache_->Release(sequence);
      } else {
        const auto runs = sequence.NextRuns(static_cast<int32_t>(rng.Range(1, 40)));
        cache_->Allocate(sequence, runs);
        cache_->Commit(sequence, runs);
      }
      if (rng.Below(4) == 0) {
        const size_t index = rng.Below(4);
        (void)cache_->Import(Key(index), {Fidelity::kLossy, 0.5F},
                             static_cast<int32_t>(index) * kBlock);
      }
      if (rng.Below(8) == 0) {
        (void)cache_->EvictAtRandom(rng, 0.3);
      }
      drop({BlockState::kReferenced, BlockState::kCached});
      cache_->CheckInvariant();
    }
    drop({BlockState::kFilling});  // not before: what is full next would be published as exact
    for (Sequence& sequence : sequences) {
      cache_->Release(sequence);
    }
    cache_->CheckInvariant();
    (void)cache_->Clear();
    EXPECT_TRUE(cache_->masks()->empty());
  }
}

TEST_F(LossyBlocks, TheInvariantNoticesDropsOfAnExactBlock) {
  Fill(*cache_, kBlock + 1);
  cache_->masks()->Drop(Resident(*cache_, kBlock + 1)[0], 0, 0, 0, 1);
  EXPECT_DEATH(cache_->CheckInvariant(), "calls it exact");
}

TEST_F(LossyBlocks, FilledUnderOtherKernelsThereAreNoExactHits) {
  for (size_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(cache_->Import(Key(i, "other kernels"), {}, static_cast<int32_t>(i) * kBlock));
  }
  EXPECT_THAT(Resident(*cache_, 4 * kBlock + 1), testing::Each(kNoBlock));
  Sequence tolerant = Tolerant(1.0F);
  EXPECT_EQ(cache_->Plan(tolerant, 4 * kBlock + 1).hits.num_hits, 4);
}

TEST_F(LossyBlocks, ImportedExactBlocksAreHits) {
  ASSERT_TRUE(cache_->Import(Key(2), {}, 2 * kBlock));
  EXPECT_NE(Resident(*cache_, 4 * kBlock + 1)[2], kNoBlock);
  EXPECT_FALSE(cache_->Import(Key(2), {}, 2 * kBlock)) << "the index holds it already";
  cache_->CheckInvariant();
}

TEST_F(LossyBlocks, WhatWasComputedFromALossyBlockIsLossy) {
  ASSERT_TRUE(cache_->Import(Key(1), {Fidelity::kLossy, 0.9F}, kBlock));
  Sequence tolerant = Tolerant(0.9F);
  Admit(*cache_, tolerant);
  Compute(*cache_, tolerant);
  cache_->Release(tolerant);
  cache_->CheckInvariant();
  // Block 0 lies before the lossy one and is exact; 2 and 3 attended to it.
  EXPECT_THAT(Resident(*cache_, 4 * kBlock + 1),
              ElementsAre(testing::Ne(kNoBlock), kNoBlock, kNoBlock, kNoBlock));
  Sequence choosy = Tolerant(0.95F);
  EXPECT_EQ(cache_->Plan(choosy, 4 * kBlock + 1).hits.num_hits, 1);
  Sequence again = Tolerant(0.9F);
  EXPECT_EQ(cache_->Plan(again, 4 * kBlock + 1).hits.num_hits, 4);
}

TEST_F(LossyBlocks, PublishingTheExactBlockDropsTheLossyOneNobodyHolds) {
  const BlockId lossy = cache_->Import(Key(1), {Fidelity::kLossy, 0.9F}, kBlock).value();
  Fill(*cache_, 4 * kBlock + 1);
  EXPECT_EQ(cache_->index().size(), 4U);
  EXPECT_FALSE(cache_->index().Contains(lossy) && cache_->index().IsSuperseded(lossy));
  EXPECT_EQ(cache_->pool().num_cached(), 4);
}

TEST_F(LossyBlocks, AHeldLossyBlockIsDroppedAtItsLastRelease) {
  const BlockId lossy = cache_->Import(Key(1), {Fidelity::kLossy, 0.9F}, kBlock).value();
  Sequence reader = Tolerant(0.5F);
  Admit(*cache_, reader);
  Fill(*cache_, 4 * kBlock + 1);
  EXPECT_TRUE(cache_->index().IsSuperseded(lossy));
  cache_->Release(reader);
  EXPECT_EQ(cache_->pool().state(lossy), BlockState::kFree);
  cache_->CheckInvariant();
}

// What no policy may change.
class KvCacheUnderEachPolicy : public testing::TestWithParam<std::string_view> {
 protected:
  static std::unique_ptr<KvCache> Make(int32_t num_blocks) {
    return MakeCache(num_blocks, std::string(GetParam()));
  }
  static bool UsesGaps() { return Make(1)->policy().hits() == HitScope::kGaps; }
};
INSTANTIATE_TEST_SUITE_P(Policies, KvCacheUnderEachPolicy, EachPolicy(), PolicyTestName);

// The request reuses the oldest blocks of a full pool and needs all the others: whatever order a
// policy has, its own later blocks must not go to make room for its gap.
TEST_P(KvCacheUnderEachPolicy, MakingRoomForAGapNeverTakesTheRequestsOwnHits) {
  for (const int32_t chunk : {5, 40, 1000}) {
    const auto cache = Make(9);
    Fill(*cache, 4 * kBlock + 1, 1);
    Fill(*cache, 4 * kBlock + 1, 2);
    const auto blocks = Resident(*cache, 4 * kBlock + 1, 1);
    cache->Evict(blocks[1]);
    Sequence sequence = MakeSequence(9 * kBlock, 1);
    Admit(*cache, sequence);
    const std::vector<BlockId> planned(sequence.block_table().begin(),
                                       sequence.block_table().end());
    EXPECT_EQ(sequence.num_hit_tokens(), UsesGaps() ? 3 * kBlock : kBlock);
    Compute(*cache, sequence, chunk);
    for (size_t i = 0; i < planned.size(); ++i) {
      const BlockId block = sequence.block_table()[i];
      EXPECT_TRUE(planned[i] == kNoBlock || planned[i] == block) << i;
      EXPECT_EQ(cache->pool().state(block), BlockState::kReferenced) << i;
    }
    EXPECT_THAT(Resident(*cache, 4 * kBlock + 1, 2), testing::Each(kNoBlock));
  }
}

TEST_P(KvCacheUnderEachPolicy, AHitThatVanishesBetweenPlanAndAdmissionMakesThePlanStale) {
  const auto cache = Make(8);
  Fill(*cache, 3 * kBlock + 1);
  Sequence sequence = MakeSequence(3 * kBlock + 1);
  const auto plan = cache->Plan(sequence, 3 * kBlock + 1);
  cache->Evict(plan.hits.blocks[1]);
  EXPECT_EQ(cache->Admit(sequence, plan), AdmitOutcome::kStale);
  EXPECT_FALSE(sequence.admitted());
  // Also when another sequence has taken the slot and published something else in it.
  Fill(*cache, 7 * kBlock, 2);
  EXPECT_EQ(cache->Admit(sequence, plan), AdmitOutcome::kStale);
  Admit(*cache, sequence);
  Compute(*cache, sequence);
}

// Both copies are used while their requests run; then one is free again.
TEST_P(KvCacheUnderEachPolicy, OfTwoSequencesThatFillTheSameGapOneCopyStays) {
  const auto cache = Make(16);
  Fill(*cache, 4 * kBlock + 1);
  cache->Evict(Resident(*cache, 4 * kBlock + 1)[1]);
  Sequence a = MakeSequence(4 * kBlock + 1);
  Sequence b = MakeSequence(4 * kBlock + 1);
  Admit(*cache, a);
  Admit(*cache, b);
  const auto runs_a = a.NextRuns(100);
  const auto runs_b = b.NextRuns(100);
  cache->Allocate(a, runs_a);
  cache->Allocate(b, runs_b);
  cache->Commit(a, runs_a);
  cache->Commit(b, runs_b);
  cache->CheckInvariant();
  const std::vector<BlockId> table_a(a.block_table().begin(), a.block_table().end());
  EXPECT_NE(table_a[1], b.block_table()[1]);
  // Without hits behind the gap both have copies of what lies there, too.
  EXPECT_EQ(cache->stats().duplicates, UsesGaps() ? 1 : 2 + 3);
  cache->Release(b);
  cache->Release(a);
  cache->CheckInvariant();
  EXPECT_EQ(cache->pool().num_cached(), 4);
  EXPECT_EQ(cache->pool().num_free(), 12);
  EXPECT_EQ(cache->index().size(), 4U);
  EXPECT_EQ(Resident(*cache, 4 * kBlock + 1)[1], table_a[1]) << "the first to be published";
}

// The fewest blocks with which two requests can run at all, one after the other, over and over.
TEST_P(KvCacheUnderEachPolicy, AFullPoolGoesRoundForEver) {
  const auto cache = Make(7);
  for (int round = 0; round < 50; ++round) {
    cache->AdvanceTime((round + 1) * int64_t{1'000'000});
    Sequence sequence = MakeSequence(7 * kBlock, static_cast<TokenId>(round % 3));
    Admit(*cache, sequence);
    EXPECT_EQ(cache->AvailableBlocks(), 0);
    Compute(*cache, sequence, 30);
    cache->Release(sequence);
    cache->CheckInvariant();
    EXPECT_EQ(cache->pool().num_cached() + cache->pool().num_free(), 7);
  }
  EXPECT_GT(cache->stats().evictions, 7 * 40);
}

// Random sequences over few prompts that share prefixes, in a pool that is too small, against
// block contents kept by hand: a hit must hold exactly the tokens its position asks for, every
// resident block must be found (under policies that use prefixes: up to the first that is not),
// sealed blocks are never written, and the counts add up.
TEST_P(KvCacheUnderEachPolicy, HitsAreCompleteAndHoldTheRightTokens) {
  const bool uses_gaps = UsesGaps();
  int64_t gaps = 0;  // the property means little unless these happened
  int64_t duplicates = 0;
  int64_t refused = 0;
  int64_t evictions = 0;  // to make room
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    const auto num_blocks = static_cast<int32_t>(rng.Range(6, 48));
    const auto cache = Make(num_blocks);
    // contents[block][slot] identifies the whole prefix up to that token; 0 = never written.
    std::vector<std::vector<uint64_t>> contents(static_cast<size_t>(num_blocks),
                                                std::vector<uint64_t>(kBlock));
    const auto prefix_ids = [](const Sequence& sequence, uint64_t salt) {
      std::vector<uint64_t> ids;
      uint64_t id = salt + 1;
      for (const TokenId token : sequence.tokens()) {
        id = Rng(id, static_cast<uint64_t>(token)).Next() | 1;
        ids.push_back(id);
      }
      return ids;
    };
    struct Live {
      Sequence sequence;
      uint64_t salt;
    };
    std::vector<std::unique_ptr<Live>> live;
    int64_t evicted_by_hand = 0;
    const auto admit = [&](Live& request) {
      Sequence& sequence = request.sequence;
      const auto ids = prefix_ids(sequence, request.salt);
      const auto need = sequence.num_tokens() + static_cast<int32_t>(rng.Below(40));
      const AdmissionPlan plan = cache->Plan(sequence, need);
      bool usable = true;
      for (size_t i = 0; i < plan.hits.blocks.size(); ++i) {
        const std::vector<uint64_t> expected(ids.begin() + static_cast<int64_t>(i * kBlock),
                                             ids.begin() + static_cast<int64_t>((i + 1) * kBlock));
        bool resident = false;  // naive search over all blocks
        for (BlockId block = 0; block < num_blocks; ++block) {
          resident |=
              cache->index().Contains(block) && contents[static_cast<size_t>(block)] == expected;
        }
        const BlockId hit = plan.hits.blocks[i];
        ASSERT_EQ(hit != kNoBlock, resident && usable);
        usable = usable && (resident || uses_gaps);
        ASSERT_TRUE(hit == kNoBlock || contents[static_cast<size_t>(hit)] == expected);
      }
      const bool fits = cache->BlocksTaken(plan) <= cache->AvailableBlocks();
      const auto outcome = cache->Admit(sequence, plan);
      ASSERT_EQ(outcome, fits ? AdmitOutcome::kAdmitted : AdmitOutcome::kNoRoom);
      refused += fits ? 0 : 1;
      gaps += sequence.hit_runs().size() >= 2 ? 1 : 0;
    };
    for (int step = 0; step < 400; ++step) {
      const uint64_t op = rng.Below(10);
      if (op < 2 && live.size() < 6) {
        auto tokens = Prompt(static_cast<int32_t>(rng.Range(1, 7 * kBlock)),
                             static_cast<TokenId>(rng.Below(2)));
        if (rng.Below(2) == 0 && tokens.size() > 40) {
          tokens[40] = 7;  // a branch in the third block
        }
        const uint64_t salt = rng.Below(2);
        live.push_back(std::make_unique<Live>(
            Live{Sequence(tokens, ExtraKeys{"", salt == 0 ? "" : "s"}, kBlock), salt}));
        ASSERT_NO_FATAL_FAILURE(admit(*live.back()));
      } else if (op < 3) {
        evicted_by_hand += cache->EvictAtRandom(rng, 0.1);
      } else if (!live.empty()) {
        const size_t which = rng.Below(live.size());
        Sequence& sequence = live[which]->sequence;
        if (!sequence.admitted()) {
          ASSERT_NO_FATAL_FAILURE(admit(*live[which]));
        } else if (op == 9 || (op >= 6 && sequence.num_to_compute() == 0)) {
          cache->Release(sequence);
          if (rng.Below(2) == 0) {  // finished; else it was preempted and comes back
            live.erase(live.begin() + static_cast<int64_t>(which));
          }
        } else if (sequence.num_to_compute() == 0) {
          sequence.Append(static_cast<TokenId>(rng.Below(3)));
          if (!cache->Reserve(sequence, sequence.num_tokens())) {
            cache->Release(sequence);
          }
        } else {
          const auto budget = static_cast<int32_t>(rng.Range(1, 70));
          const auto runs = sequence.NextRuns(budget);
          int32_t total = 0;
          cache->Allocate(sequence, runs);
          const auto ids = prefix_ids(sequence, live[which]->salt);
          for (const TokenRun& run : runs) {
            total += run.num_tokens;
            for (int32_t pos = run.first_pos; pos < run.end_pos(); ++pos) {
              const BlockId block = sequence.block_table()[static_cast<size_t>(pos / kBlock)];
              ASSERT_EQ(cache->pool().state(block), BlockState::kFilling);
              contents[static_cast<size_t>(block)][static_cast<size_t>(pos % kBlock)] =
                  ids[static_cast<size_t>(pos)];
            }
          }
          ASSERT_EQ(total, std::min(budget, sequence.num_to_compute()));
          cache->Commit(sequence, runs);
        }
      }
      cache->CheckInvariant();
    }
    for (const auto& request : live) {
      cache->Release(request->sequence);
    }
    cache->CheckInvariant();
    ASSERT_EQ(cache->pool().num_free() + cache->pool().num_cached(), num_blocks);
    ASSERT_EQ(cache->stats().reserved_blocks, 0);
    duplicates += cache->stats().duplicates;
    evictions += cache->stats().evictions - evicted_by_hand;
  }
  EXPECT_GT(evictions, 500);
  EXPECT_TRUE(gaps > 500 || !uses_gaps);
  EXPECT_GT(duplicates, 50);
  EXPECT_GT(refused, 50);
}

}  // namespace
}  // namespace kvik::kv
