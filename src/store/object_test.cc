// SPDX-License-Identifier: Apache-2.0
#include "store/object.h"

#include <gtest/gtest.h>

#include <set>

#include "base/rng.h"
#include "store/block_recycler.h"
#include "store/buffer.h"
#include "store/coverage.h"
#include "store/testing/made_objects.h"

namespace kvik::store {
namespace {

using testing::MadeHash;
using testing::MetaOf;

TEST(ObjectMeta, RoundTripsThroughBytes) {
  ObjectMeta meta = MetaOf({.conversation = 9, .chunk = 2, .profile = 77, .tenant = {5}});
  meta.quality = {kv::Fidelity::kLossy, 0.93F};
  meta.ttl_us = 123456;
  const auto bytes = EncodeMeta(meta);
  const ObjectMeta back = DecodeMeta(bytes).value();
  EXPECT_EQ(back.key, meta.key);
  EXPECT_EQ(back.blocks, meta.blocks);
  EXPECT_EQ(back.parent, meta.parent);
  EXPECT_EQ(back.ttl_us, meta.ttl_us);
  EXPECT_EQ(back.quality.fidelity, kv::Fidelity::kLossy);
  EXPECT_EQ(back.quality.q, 0.93F);
}

TEST(ObjectMeta, BytesThatLieAreRefused) {
  const auto good = EncodeMeta(MetaOf({}));
  for (size_t n = 0; n < good.size(); ++n) {
    EXPECT_EQ(DecodeMeta(std::span(good).first(n)).error().code, ErrorCode::kCorrupt) << n;
  }
  auto version = good;
  version[0] = std::byte{2};
  EXPECT_EQ(DecodeMeta(version).error().code, ErrorCode::kUnsupported);
  auto huge = good;
  huge[7] = std::byte{0xFF};  // num_blocks
  EXPECT_EQ(DecodeMeta(huge).error().code, ErrorCode::kCorrupt);
  constexpr uint64_t kSeed = 21;
  Rng rng(kSeed);
  for (int i = 0; i < 2000; ++i) {
    auto damaged = good;
    damaged[rng.Below(damaged.size())] ^= std::byte{1} << rng.Below(8);
    const auto meta = DecodeMeta(damaged);
    if (meta) {
      EXPECT_TRUE(meta->Check());
    }
  }
}

TEST(ObjectMeta, ChecksWhatAWriterSays) {
  ObjectMeta meta = MetaOf({});
  EXPECT_TRUE(meta.Check());
  meta.quality.q = 1.5F;
  EXPECT_EQ(meta.Check().error().code, ErrorCode::kInvalidInput);
  meta = MetaOf({});
  meta.blocks.front() = MadeHash(3, 3);
  EXPECT_TRUE(meta.Check());
  meta.blocks.back() = MadeHash(3, 3);
  EXPECT_FALSE(meta.Check());
  meta.blocks.clear();
  EXPECT_FALSE(meta.Check());
}

TEST(Tenant, TheDefaultHasNoName) {
  EXPECT_EQ(TenantId::FromName(""), TenantId{});
  EXPECT_NE(TenantId::FromName("a"), TenantId::FromName("b"));
}

TEST(Matching, PrefixTakesDescendantsOnly) {
  std::vector<ObjectMeta> metas;
  for (const uint64_t conversation : {1, 2}) {
    for (int chunk = 0; chunk < 4; ++chunk) {
      metas.push_back(MetaOf({.conversation = conversation, .chunk = chunk}));
    }
  }
  // A second encoding and a short chunk that ends within conversation 1, chunk 2.
  metas.push_back(MetaOf({.conversation = 1, .chunk = 3, .profile = 9}));
  metas.push_back(MetaOf({.conversation = 1, .chunk = 2, .num_blocks = 1}));
  std::vector<const ObjectMeta*> pointers;
  for (const ObjectMeta& meta : metas) {
    pointers.push_back(&meta);
  }
  RemoveFilter filter;
  filter.prefix = MadeHash(1, 2 * testing::kChunkBlocks + 1);  // the second block of chunk 2
  EXPECT_EQ(Matching(pointers, filter), (std::vector<size_t>{2, 3, 8}));
  filter.prefix = MadeHash(1, 0);
  EXPECT_EQ(Matching(pointers, filter), (std::vector<size_t>{0, 1, 2, 3, 8, 9}));
  filter.prefix.reset();
  filter.tenant = TenantId{3};
  EXPECT_TRUE(Matching(pointers, filter).empty());
}

TEST(MemoryAccount, IsNeverPassed) {
  MemoryAccount account;
  EXPECT_TRUE(account.TryAdd(60, 100));
  EXPECT_FALSE(account.TryAdd(41, 100));
  EXPECT_TRUE(account.TryAdd(40, 100));
  EXPECT_FALSE(account.TryAdd(~uint64_t{0}, 100));
  account.Subtract(100);
  EXPECT_EQ(account.used_bytes(), 0U);
}

TEST(Buffer, IsChargedUntilTheLastReferenceIsGone) {
  auto account = std::make_shared<MemoryAccount>();
  ASSERT_TRUE(account->TryAdd(1000, 1000));
  WritableBuffer writable = WritableBuffer::Allocate(1000, account).value();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(writable.bytes().data()) % 64, 0U);
  Buffer buffer = std::move(writable).Freeze();
  Buffer copy = buffer;
  EXPECT_EQ(copy.bytes().data(), buffer.bytes().data());
  buffer = Buffer();
  EXPECT_EQ(account->used_bytes(), 1000U);
  copy = Buffer();
  EXPECT_EQ(account->used_bytes(), 0U);
}

TEST(Buffer, ChargedTwiceIsTwoAccountsAndOneCopy) {
  auto first = std::make_shared<MemoryAccount>();
  auto second = std::make_shared<MemoryAccount>();
  first->Add(8);
  second->Add(8);
  Buffer a = WritableBuffer::Allocate(8, first).value().Freeze();
  Buffer b = a.ChargedTo(second);
  EXPECT_EQ(a.bytes().data(), b.bytes().data());
  a = Buffer();
  EXPECT_EQ(first->used_bytes(), 8U);  // b needs the bytes
  b = Buffer();
  EXPECT_EQ(first->used_bytes() + second->used_bytes(), 0U);
}

TEST(BlockRecycler, GivesLargeBlocksOutAgainWithinItsLimit) {
  BlockRecycler recycler(300 << 10);
  const auto a = recycler.Take(100 << 10);
  const auto b = recycler.Take(250 << 10);
  const auto small = recycler.Take(100);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data) % 64, 0U);
  recycler.Give(a);
  recycler.Give(small);
  EXPECT_EQ(recycler.kept_bytes(), a.size_bytes);
  recycler.Give(b);  // more than the limit with `a`: the older one goes
  EXPECT_EQ(recycler.kept_bytes(), b.size_bytes);
  EXPECT_EQ(recycler.Take(250 << 10).data, b.data);
  const auto c = recycler.Take(100 << 10);
  recycler.Give(c);
  recycler.Give(BlockRecycler::Block());
  EXPECT_EQ(recycler.kept_bytes(), c.size_bytes);
  const auto larger = recycler.Take(101 << 10);
  EXPECT_NE(larger.data, c.data);
  const auto much_smaller = recycler.Take(64 << 10);  // would waste more than an eighth
  EXPECT_NE(much_smaller.data, c.data);
  const auto again = recycler.Take((100 << 10) - 500);
  EXPECT_EQ(again.data, c.data);
  EXPECT_EQ(recycler.kept_bytes(), 0U);
  EXPECT_EQ(recycler.Take(~size_t{0}).data, nullptr);
  recycler.Give(again);
  recycler.Give(larger);
  recycler.Give(much_smaller);
  recycler.Give(b);
}

TEST(Coverage, TellsPrefixAndGaps) {
  const auto object = [](int last, int n, kv::BlockQuality quality = {}) {
    FoundObject found;
    found.last_block = last;
    found.info.num_blocks = n;
    found.info.quality = quality;
    return found;
  };
  const std::vector<FoundObject> objects = {object(3, 4), object(7, 4), object(15, 4),
                                            object(17, 2),
                                            object(21, 2, {kv::Fidelity::kLossy, 0.9F})};
  const Coverage exact = CoverageOf(24, objects, {});
  EXPECT_EQ(exact.prefix_blocks, 8);
  EXPECT_EQ(exact.covered, (std::vector<BlockRun>{{0, 8}, {12, 18}}));
  EXPECT_EQ(exact.gaps, (std::vector<BlockRun>{{8, 12}}));
  const Coverage lossy = CoverageOf(24, objects, {.allow_lossy = true, .q_min = 0.9F});
  EXPECT_EQ(lossy.covered.back(), (BlockRun{20, 22}));
  const Coverage strict = CoverageOf(24, objects, {.allow_lossy = true, .q_min = 0.95F});
  EXPECT_EQ(strict.covered, exact.covered);
}

TEST(Coverage, AgreesWithMarkingEachBlock) {
  constexpr uint64_t kSeed = 5;
  SCOPED_TRACE(kSeed);
  Rng rng(kSeed);
  for (int round = 0; round < 500; ++round) {
    const int num_blocks = static_cast<int>(rng.Range(1, 40));
    std::vector<bool> marked(num_blocks, false);
    std::vector<FoundObject> objects(rng.Below(8));
    for (FoundObject& found : objects) {
      found.last_block = static_cast<int32_t>(rng.Below(num_blocks));
      found.info.num_blocks = static_cast<int32_t>(rng.Range(1, found.last_block + 1));
      const bool lossy = rng.Below(3) == 0;
      found.info.quality.fidelity = lossy ? kv::Fidelity::kLossy : kv::Fidelity::kExact;
      for (int i = 0; !lossy && i < found.info.num_blocks; ++i) {
        marked[found.last_block - i] = true;
      }
    }
    const Coverage coverage = CoverageOf(num_blocks, objects, {});
    std::vector<bool> told(num_blocks, false);
    for (const BlockRun& run : coverage.covered) {
      for (int i = run.begin; i < run.end; ++i) {
        told[i] = true;
      }
    }
    EXPECT_EQ(told, marked);
    int prefix = 0;
    while (prefix < num_blocks && marked[prefix]) {
      ++prefix;
    }
    EXPECT_EQ(coverage.prefix_blocks, prefix);
    for (const BlockRun& gap : coverage.gaps) {
      EXPECT_TRUE(gap.end < num_blocks && marked[gap.end] && !marked[gap.begin]);
    }
  }
}

}  // namespace
}  // namespace kvik::store
