// SPDX-License-Identifier: Apache-2.0
#include "kv/prefix_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/rng.h"

namespace kvik::kv {
namespace {

using testing::ElementsAre;
using Outcome = PrefixIndex::PublishOutcome;

constexpr NumericsTag kOurs{1};
constexpr NumericsTag kTheirs{2};
constexpr BlockQuality kExact{};
constexpr MinQuality kOnlyExact{};

BlockQuality Lossy(float q) { return BlockQuality{Fidelity::kLossy, q}; }
MinQuality AtLeast(float q) { return MinQuality{true, q}; }

ContentKey Key(uint8_t n) {
  ContentKey key;
  key.hash.bytes[0] = n;
  return key;
}

TEST(PrefixIndex, LookupReturnsEveryMaximalRun) {
  PrefixIndex index(kOurs);
  std::vector<ContentKey> keys;
  for (uint8_t i = 0; i < 8; ++i) {
    keys.push_back(Key(i));
    if (i == 0 || i == 1 || i == 4 || i == 7) {
      (void)index.Publish({keys.back(), kOurs}, 10 + i, kExact);
    }
  }
  const LookupResult result = index.Lookup(keys, kOnlyExact);
  EXPECT_THAT(result.blocks, ElementsAre(10, 11, kNoBlock, kNoBlock, 14, kNoBlock, kNoBlock, 17));
  EXPECT_THAT(result.runs, ElementsAre(ResidentRun{0, 2}, ResidentRun{4, 1}, ResidentRun{7, 1}));
  EXPECT_EQ(result.num_hits, 4);
}

TEST(PrefixIndex, ABlockOfOtherNumericsIsNeverExactHere) {
  PrefixIndex index(kOurs);
  (void)index.Publish({Key(1), kTheirs}, 5, BlockQuality{Fidelity::kExact, 0.99F});
  EXPECT_EQ(index.Find(Key(1), kOnlyExact), kNoBlock);
  EXPECT_EQ(index.Find(Key(1), AtLeast(0.98F)), 5);
  EXPECT_EQ(index.Find(Key(1), AtLeast(1.0F)), kNoBlock);
  EXPECT_EQ(index.quality(5).fidelity, Fidelity::kLossy);
}

TEST(PrefixIndex, ALossyBlockIsJudgedByTheReadersWorkload) {
  const WorkloadTag math = WorkloadTag::Of("math");
  const WorkloadTag unlabelled = WorkloadTag::Of("");
  PrefixIndex index(kOurs);
  (void)index.Publish({Key(1), kOurs}, 5, BlockQuality{Fidelity::kLossy, 0.95F, math, 0.98F});
  EXPECT_EQ(index.Find(Key(1), {true, 0.98F, math}), 5);
  EXPECT_EQ(index.Find(Key(1), {true, 0.99F, math}), kNoBlock);
  for (const WorkloadTag other : {WorkloadTag{}, unlabelled, WorkloadTag::Of("code")}) {
    EXPECT_EQ(index.Find(Key(1), {true, 0.96F, other}), kNoBlock);
    EXPECT_EQ(index.Find(Key(1), {true, 0.95F, other}), 5);
  }
  EXPECT_EQ(index.quality(5).For(math), 0.98F);
  EXPECT_EQ(index.quality(5).For(unlabelled), 0.95F);
}

TEST(BlockQuality, WhatIsComputedFromSeveralBlocksIsWorthTheLeastForEachReader) {
  const WorkloadTag a = WorkloadTag::Of("a");
  const WorkloadTag b = WorkloadTag::Of("b");
  Rng rng(7);
  const auto random = [&] {
    BlockQuality quality;
    if (rng.Below(4) == 0) {
      return quality;
    }
    quality.fidelity = Fidelity::kLossy;
    quality.q = static_cast<float>(rng.Below(100)) / 100;
    quality.workload = rng.Below(3) == 0 ? WorkloadTag{} : rng.Below(2) == 0 ? a : b;
    quality.workload_q = quality.q + static_cast<float>(rng.Below(10)) / 100;
    return quality;
  };
  for (int round = 0; round < 1000; ++round) {
    const BlockQuality one = random();
    const BlockQuality two = random();
    for (const WorkloadTag kept : {WorkloadTag{}, a, b}) {
      const BlockQuality worse = WorseOf(one, two, kept);
      EXPECT_EQ(worse.fidelity == Fidelity::kLossy,
                one.fidelity == Fidelity::kLossy || two.fidelity == Fidelity::kLossy);
      for (const WorkloadTag reader : {WorkloadTag{}, a, b}) {
        const float truth = std::min(one.For(reader), two.For(reader));
        EXPECT_LE(worse.For(reader), truth);
        if (reader == kept && reader.value != 0) {
          EXPECT_EQ(worse.For(reader), truth) << "what is kept apart loses nothing";
        }
      }
    }
  }
  const float unmeasured = std::nanf("");
  EXPECT_EQ(WorseOf({Fidelity::kLossy, unmeasured, a, unmeasured}, {}, a).For(a), 0.0F);
}

TEST(PrefixIndex, AReaderGetsTheExactBlockBeforeTheLossyOne) {
  PrefixIndex index(kOurs);
  EXPECT_EQ(index.Publish({Key(1), kOurs}, 5, Lossy(0.97F)).outcome, Outcome::kPublished);
  EXPECT_EQ(index.Find(Key(1), AtLeast(0.9F)), 5);
  const auto second = index.Publish({Key(1), kOurs}, 6, kExact);
  EXPECT_EQ(second.outcome, Outcome::kPublished);
  EXPECT_EQ(second.superseded, 5);
  EXPECT_TRUE(index.IsSuperseded(5));
  EXPECT_EQ(index.Find(Key(1), AtLeast(0.9F)), 6);
  index.Erase(5);
  EXPECT_EQ(index.Find(Key(1), kOnlyExact), 6);
}

TEST(PrefixIndex, HoldsOneExactAndOneLossyBlockOfAContent) {
  PrefixIndex index(kOurs);
  (void)index.Publish({Key(1), kOurs}, 5, Lossy(0.9F));
  EXPECT_EQ(index.Publish({Key(1), kOurs}, 6, Lossy(0.99F)).outcome, Outcome::kDuplicate);
  (void)index.Publish({Key(1), kOurs}, 7, kExact);
  EXPECT_EQ(index.Publish({Key(1), kOurs}, 8, kExact).outcome, Outcome::kDuplicate);
  EXPECT_EQ(index.Publish({Key(1), kOurs}, 9, Lossy(1.0F)).outcome, Outcome::kDuplicate);
  EXPECT_EQ(index.size(), 2U);
  EXPECT_FALSE(index.Contains(8));
}

TEST(PrefixIndex, TheLossyBlockServesAgainWhenTheExactOneIsEvicted) {
  PrefixIndex index(kOurs);
  (void)index.Publish({Key(1), kOurs}, 5, Lossy(0.9F));
  (void)index.Publish({Key(1), kOurs}, 6, kExact);
  index.Erase(6);
  EXPECT_FALSE(index.IsSuperseded(5));
  EXPECT_EQ(index.Find(Key(1), AtLeast(0.9F)), 5);
  EXPECT_EQ(index.Find(Key(1), kOnlyExact), kNoBlock);
}

TEST(PrefixIndex, RandomOperationsAgreeWithALinearSearch) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    PrefixIndex index(kOurs);
    struct Model {
      uint8_t key = 0;
      bool exact = false;
      float q = 1;
    };
    std::map<BlockId, Model> model;
    for (int step = 0; step < 600; ++step) {
      const auto key = static_cast<uint8_t>(rng.Below(12));
      if (rng.Below(3) != 0) {
        const BlockId block = step;
        const bool exact_quality = rng.Below(2) == 0;
        const bool ours = rng.Below(3) != 0;
        const float q = exact_quality ? 1.0F : static_cast<float>(rng.Below(10)) / 10.0F;
        const bool exact = exact_quality && ours;
        bool duplicate = false;
        for (const auto& [id, entry] : model) {
          duplicate |= entry.key == key && (entry.exact || !exact);
        }
        const auto result = index.Publish({Key(key), ours ? kOurs : kTheirs}, block,
                                          {exact_quality ? Fidelity::kExact : Fidelity::kLossy, q});
        ASSERT_EQ(result.outcome == Outcome::kDuplicate, duplicate);
        if (!duplicate) {
          model[block] = {key, exact, q};
        }
      } else if (!model.empty()) {
        const auto victim = std::next(model.begin(), static_cast<int64_t>(rng.Below(model.size())));
        index.Erase(victim->first);
        model.erase(victim);
      }
      ASSERT_EQ(index.size(), model.size());
      const MinQuality min{rng.Below(2) == 0, static_cast<float>(rng.Below(11)) / 10.0F};
      std::vector<ContentKey> keys;
      std::vector<BlockId> expected;
      for (uint8_t k = 0; k < 12; ++k) {
        keys.push_back(Key(k));
        expected.push_back(kNoBlock);
        for (const auto& [id, entry] : model) {
          if (entry.key == k && (entry.exact || (expected.back() == kNoBlock && min.allow_lossy &&
                                                 entry.q >= min.q_min))) {
            expected.back() = id;
          }
        }
      }
      const LookupResult result = index.Lookup(keys, min);
      ASSERT_EQ(result.blocks, expected);
      int32_t hits = 0;
      for (const ResidentRun& run : result.runs) {
        hits += run.num_blocks;
        ASSERT_TRUE(run.first_block == 0 ||
                    expected[static_cast<size_t>(run.first_block) - 1] == kNoBlock);
      }
      ASSERT_EQ(hits, result.num_hits);
    }
  }
}

}  // namespace
}  // namespace kvik::kv
