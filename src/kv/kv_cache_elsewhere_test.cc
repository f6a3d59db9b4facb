// SPDX-License-Identifier: Apache-2.0
// Blocks of the cache that others write and read. The engine's tests of kv::Connector drive the
// same through requests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/rng.h"
#include "kv/kv_cache.h"
#include "kv/testing/each_policy.h"
#include "kv/testing/fake_kv.h"

namespace kvik::kv {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int32_t kBlock = 4;
constexpr BlockQuality kExactQuality{};

std::vector<TokenId> Prompt(int32_t num_tokens, TokenId first = 0) {
  std::vector<TokenId> tokens(static_cast<size_t>(num_tokens));
  for (int32_t i = 0; i < num_tokens; ++i) {
    tokens[static_cast<size_t>(i)] = first + i;
  }
  return tokens;
}

class KvCacheElsewhere : public testing::TestWithParam<std::string_view> {
 protected:
  void Start(int32_t num_blocks) {
    CacheOptions options;
    options.num_blocks = num_blocks;
    options.block_size_tokens = kBlock;
    options.policy.name = GetParam();
    cache_ = KvCache::Create(options).value();
  }
  // A prompt of `blocks` full blocks and a token.
  static Sequence MakeSequence(int32_t blocks, MinQuality quality = {}) {
    return {Prompt(blocks * kBlock + 1), ExtraKeys{}, kBlock, quality};
  }
  void Admit(Sequence& sequence) {
    ASSERT_EQ(cache_->Admit(sequence, cache_->Plan(sequence, sequence.num_tokens())),
              AdmitOutcome::kAdmitted);
  }
  void Compute(Sequence& sequence) {
    while (sequence.num_to_compute() > 0) {
      const auto runs = sequence.NextRuns(1000);
      ASSERT_FALSE(runs.empty());
      cache_->Allocate(sequence, runs);
      cache_->Commit(sequence, runs);
    }
    cache_->CheckInvariant();
  }
  std::unique_ptr<KvCache> cache_;
};
INSTANTIATE_TEST_SUITE_P(Policies, KvCacheElsewhere, EachPolicy(), PolicyTestName);

TEST_P(KvCacheElsewhere, LoadedBlocksAreSkippedOnceTheyAreThereAndNotBefore) {
  Start(10);
  Sequence sequence = MakeSequence(6);
  Admit(sequence);
  EXPECT_THAT(cache_->MissingBlocks(sequence), ElementsAre(BlockRange{0, 6}));
  const auto blocks = cache_->BeginLoad(sequence, {2, 3});
  EXPECT_THAT(cache_->MissingBlocks(sequence), ElementsAre(BlockRange{0, 2}, BlockRange{5, 1}));
  EXPECT_EQ(cache_->stats().loading_blocks, 3);
  EXPECT_EQ(cache_->stats().reserved_blocks, 4);
  EXPECT_EQ(sequence.num_to_compute(), 6 * kBlock + 1);
  EXPECT_THAT(sequence.NextRuns(100), ElementsAre(TokenRun{0, 2 * kBlock}));
  EXPECT_EQ(cache_->EndLoad(blocks[1], kExactQuality), LoadOutcome::kReady);
  EXPECT_THAT(sequence.NextRuns(100), ElementsAre(TokenRun{0, 2 * kBlock}));
  EXPECT_FALSE(sequence.blocked());
  const auto runs = sequence.NextRuns(100);
  cache_->Allocate(sequence, runs);
  cache_->Commit(sequence, runs);
  EXPECT_TRUE(sequence.blocked());
  EXPECT_THAT(sequence.NextRuns(100), IsEmpty());
  EXPECT_EQ(cache_->EndLoad(blocks[0], kExactQuality), LoadOutcome::kReady);
  EXPECT_EQ(sequence.next_pos(), 4 * kBlock);
  EXPECT_TRUE(sequence.blocked());
  EXPECT_EQ(cache_->EndLoad(blocks[2], std::nullopt), LoadOutcome::kCompute);
  EXPECT_FALSE(sequence.blocked());
  EXPECT_THAT(sequence.NextRuns(100), ElementsAre(TokenRun{4 * kBlock, 2 * kBlock + 1}));
  Compute(sequence);
  cache_->Release(sequence);
  cache_->CheckInvariant();
  EXPECT_EQ(cache_->stats().cached_blocks, 6);
  EXPECT_EQ(cache_->AvailableBlocks(), 10);
}

TEST_P(KvCacheElsewhere, ABlockIsNotFreeBeforeItsLoadHasEnded) {
  Start(4);
  Sequence sequence = MakeSequence(3);
  Admit(sequence);
  const auto blocks = cache_->BeginLoad(sequence, {0, 3});
  cache_->Release(sequence);
  cache_->CheckInvariant();
  EXPECT_EQ(cache_->AvailableBlocks(), 1);
  EXPECT_EQ(cache_->EndLoad(blocks[0], std::nullopt), LoadOutcome::kDropped);
  EXPECT_EQ(cache_->EndLoad(blocks[1], kExactQuality), LoadOutcome::kCached);
  EXPECT_EQ(cache_->EndLoad(blocks[2], kExactQuality), LoadOutcome::kCached);
  cache_->CheckInvariant();
  EXPECT_EQ(cache_->AvailableBlocks(), 4);
  Sequence next = MakeSequence(3);
  EXPECT_EQ(cache_->Plan(next, next.num_tokens()).hits.num_hits,
            cache_->policy().hits() == HitScope::kGaps ? 2 : 0);
}

TEST_P(KvCacheElsewhere, OfTwoCopiesOneStays) {
  Start(12);
  Sequence loads = MakeSequence(4, MinQuality{true, 0.5F});
  Admit(loads);
  const auto blocks = cache_->BeginLoad(loads, {0, 4});
  Sequence computes = MakeSequence(2);
  Admit(computes);
  Compute(computes);
  cache_->Release(computes);
  // The exact block that is resident takes the place of a lossy one, and of an equal one.
  EXPECT_EQ(cache_->EndLoad(blocks[0], BlockQuality{Fidelity::kLossy, 0.7F}),
            LoadOutcome::kDuplicate);
  EXPECT_EQ(cache_->EndLoad(blocks[1], kExactQuality), LoadOutcome::kDuplicate);
  EXPECT_NE(loads.block_table()[0], blocks[0]);
  EXPECT_EQ(cache_->stats().referenced_blocks, 2);
  // Not a lossy one that is too bad for the reader.
  const auto lossy = cache_->Import({loads.keys()[2], NumericsTag::FromDescription("")},
                                    {Fidelity::kLossy, 0.4F}, 2 * kBlock);
  ASSERT_TRUE(lossy.has_value());
  EXPECT_EQ(cache_->EndLoad(blocks[2], BlockQuality{Fidelity::kLossy, 0.6F}), LoadOutcome::kReady);
  EXPECT_EQ(loads.block_table()[2], blocks[2]);
  EXPECT_EQ(cache_->EndLoad(blocks[3], std::nullopt), LoadOutcome::kCompute);
  Compute(loads);
  EXPECT_EQ(loads.quality().q, 0.6F);
  EXPECT_EQ(cache_->index().quality(loads.block_table()[3]).q, 0.6F);
  cache_->Release(loads);
  cache_->CheckInvariant();
  EXPECT_EQ(cache_->AvailableBlocks(), 12);
}

TEST_P(KvCacheElsewhere, HeldBlocksStayWhoeverLetsGoOfThem) {
  Start(4);
  Sequence sequence = MakeSequence(3);
  Admit(sequence);
  Compute(sequence);
  const std::vector<BlockId> blocks(sequence.block_table().begin(), sequence.block_table().end());
  cache_->Hold(blocks[0]);
  cache_->Hold(blocks[0]);
  cache_->Release(sequence);
  cache_->Hold(blocks[1]);  // cached until now
  cache_->CheckInvariant();
  EXPECT_EQ(cache_->AvailableBlocks(), 2);
  EXPECT_EQ(cache_->Clear(), 1);
  cache_->Unhold(blocks[0]);
  EXPECT_EQ(cache_->AvailableBlocks(), 2);
  cache_->Unhold(blocks[0]);
  cache_->Unhold(blocks[1]);
  cache_->CheckInvariant();
  EXPECT_EQ(cache_->stats().held_blocks, 0);
  EXPECT_EQ(cache_->stats().cached_blocks, 2);
}

TEST_P(KvCacheElsewhere, WhatWasPromisedCannotBeHeld) {
  Start(6);
  Sequence first = MakeSequence(3);
  Admit(first);
  Compute(first);
  const BlockId block = first.block_table()[0];
  cache_->Release(first);
  Sequence second(Prompt(6 * kBlock, 1000), ExtraKeys{}, kBlock);
  Admit(second);
  EXPECT_DEATH(cache_->Hold(block), "promised");
  cache_->Release(second);
}

// Sequences are admitted, computed and released, blocks are loaded, exactly or not, and held, in
// any order; slots of every block tell what they were computed from.
TEST_P(KvCacheElsewhere, WhatTheIndexCallsExactIsExactInAnyOrderOfEvents) {
  constexpr int32_t kBlocks = 14;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    Start(kBlocks);
    FakeKv kv(kBlocks, kBlock);
    const auto reference = FakeKv::ReferenceSlots(Prompt(6 * kBlock + 1));
    std::vector<Sequence> sequences;
    for (int i = 0; i < 4; ++i) {
      sequences.push_back(
          MakeSequence(static_cast<int32_t>(rng.Range(1, 6)), {rng.Below(2) == 0, 0.5F}));
    }
    std::map<BlockId, int32_t> loading;  // to the number of the block
    std::vector<BlockId> held;
    const auto end_load = [&](BlockId block, int32_t index) {
      const bool exact = rng.Below(2) == 0;
      for (int32_t i = 0; i < kBlock; ++i) {
        const uint64_t slot = reference[static_cast<size_t>(index * kBlock + i)];
        kv.Block(block)[static_cast<size_t>(i)] = exact ? slot : ~slot;
      }
      const BlockQuality lossy{Fidelity::kLossy, rng.Below(2) == 0 ? 0.4F : 0.6F};
      (void)cache_->EndLoad(
          block, rng.Below(4) == 0 ? std::nullopt : std::optional(exact ? BlockQuality{} : lossy));
    };
    for (int step = 0; step < 150; ++step) {
      Sequence& sequence = sequences[rng.Below(sequences.size())];
      if (!sequence.admitted()) {
        (void)cache_->Admit(sequence, cache_->Plan(sequence, sequence.num_tokens()));
      } else if (rng.Below(6) == 0 || sequence.num_to_compute() == 0) {
        cache_->Release(sequence);
      } else if (const auto missing = cache_->MissingBlocks(sequence);
                 !missing.empty() && rng.Below(3) == 0) {
        BlockRange range = missing[rng.Below(missing.size())];
        const auto skip = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(range.num_blocks)));
        range = {range.first_block + skip, range.num_blocks - skip};
        const auto blocks = cache_->BeginLoad(sequence, range);
        for (size_t i = 0; i < blocks.size(); ++i) {
          loading[blocks[i]] = range.first_block + static_cast<int32_t>(i);
        }
      } else {
        const auto runs = sequence.NextRuns(static_cast<int32_t>(rng.Range(1, 9)));
        cache_->Allocate(sequence, runs);
        for (const TokenRun& run : runs) {
          for (int32_t pos = run.first_pos; pos < run.end_pos(); ++pos) {
            kv.Write(sequence.block_table(), pos, sequence.tokens()[static_cast<size_t>(pos)]);
          }
        }
        cache_->Commit(sequence, runs);
      }
      for (auto it = loading.begin(); it != loading.end();) {
        for (uint64_t& slot : kv.Block(it->first)) {
          slot = rng.Next();
        }
        if (rng.Below(5) == 0) {
          end_load(it->first, it->second);
          it = loading.erase(it);
        } else {
          ++it;
        }
      }
      const auto block = static_cast<BlockId>(rng.Below(kBlocks));
      if (cache_->index().Contains(block) && cache_->AvailableBlocks() > 0 && rng.Below(4) == 0) {
        cache_->Hold(block);
        held.push_back(block);
      }
      if (!held.empty() && rng.Below(3) == 0) {
        cache_->Unhold(held.back());
        held.pop_back();
      }
      if (rng.Below(10) == 0) {
        (void)cache_->EvictAtRandom(rng, 0.3);
      }
      cache_->CheckInvariant();
      for (const Sequence& each : sequences) {
        for (size_t i = 0; i < each.keys().size(); ++i) {
          if (const BlockId exact = cache_->index().Find(each.keys()[i], {}); exact != kNoBlock) {
            ASSERT_TRUE(std::equal(kv.Block(exact).begin(), kv.Block(exact).end(),
                                   reference.begin() + static_cast<std::ptrdiff_t>(i * kBlock)));
          }
        }
      }
    }
    for (const auto& [block, index] : loading) {
      end_load(block, index);
    }
    for (Sequence& sequence : sequences) {
      cache_->Release(sequence);
    }
    for (const BlockId block : held) {
      cache_->Unhold(block);
    }
    cache_->CheckInvariant();
    EXPECT_EQ(cache_->stats().free_blocks + cache_->stats().cached_blocks, kBlocks);
    EXPECT_EQ(cache_->stats().reserved_blocks, 0);
  }
}

}  // namespace
}  // namespace kvik::kv
