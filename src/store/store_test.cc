// SPDX-License-Identifier: Apache-2.0
#include "store/store.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <thread>

#include "base/rng.h"
#include "base/testing/temp_path.h"
#include "store/testing/fake_tier.h"
#include "store/testing/faulty_files.h"
#include "store/testing/made_objects.h"

namespace kvik::store {
namespace {

using testing::FakeTier;
using testing::FaultyFiles;
using testing::IsIntact;
using testing::kChunkBlocks;
using testing::KeyOf;
using testing::MadeObject;
using testing::MadeRequest;
using testing::MetaOf;
using testing::ObjectOf;
using testing::QueryOf;

constexpr size_t kObject = 1000;

StoreOptions SmallOptions(int memory_objects = 8) {
  StoreOptions options;
  options.background = false;
  options.memory.budget_bytes = memory_objects * (kObject + kObjectOverheadBytes);
  options.memory.high_watermark = 1;
  options.memory.low_watermark = 1;
  options.memory.catalog.max_object_share = 0.5;
  options.memory.catalog.eviction = EvictionKind::kLru;
  options.disk.emplace();
  options.disk->folder = "disk";
  options.disk->budget_bytes = 256 << 10;
  options.disk->segment_bytes = 16 << 10;
  return options;
}

// All events of objects that are not profile kUntold's.
class CollectingSink final : public EventSink {
 public:
  static constexpr uint64_t kUntold = 99;
  [[nodiscard]] bool Concerns(const ObjectMeta& meta) const override {
    return meta.key.profile_hash != KeyOf({.profile = kUntold}).profile_hash;
  }
  void OnEvent(kv::BlockEvent event) override { events_.push_back(std::move(event)); }
  // Since the last call.
  std::vector<kv::BlockEvent> Take() { return std::exchange(events_, {}); }

 private:
  std::vector<kv::BlockEvent> events_;
};

// A store over a faulty disk and a fake pool.
struct World {
  explicit World(const StoreOptions& the_options = SmallOptions(), uint64_t seed = 1)
      : options(the_options), files(seed), events(std::make_shared<CollectingSink>()) {
    Restart();
  }
  void Restart() {
    store = nullptr;
    auto tier = std::make_unique<FakeTier>(clock);
    pool = tier.get();
    std::vector<std::unique_ptr<Tier>> remote;
    remote.push_back(std::move(tier));
    store = Store::Open(options, clock, files, std::move(remote), events).value();
  }
  Result<void> Put(const MadeObject& made, size_t size_bytes = kObject) const {
    const Object object = ObjectOf(made, size_bytes);
    return store->Put(*object.meta, object.bytes);
  }
  Result<ReadLease> Read(const ObjectKey& key, ReadOptions read = {}) const {
    return std::move(store->Read({&key, 1}, read).front());
  }
  // Whether it was read, and intact.
  bool Reads(const MadeObject& made) const {
    const ObjectKey key = KeyOf(made);
    const auto lease = Read(key);
    if (!lease) {
      return false;
    }
    EXPECT_TRUE(IsIntact(key, lease->bytes()->bytes()));
    return true;
  }
  TierStats Stats(size_t tier) const { return store->stats().tiers[tier]; }

  StoreOptions options;
  ManualClock clock;
  FaultyFiles files;
  std::shared_ptr<CollectingSink> events;
  FakeTier* pool = nullptr;
  std::unique_ptr<Store> store;
};

constexpr size_t kMemory = 0;
constexpr size_t kDisk = 1;
constexpr size_t kPool = 2;

TEST(Store, WhatIsPutReachesAllTiersAndSurvivesARestart) {
  World world;
  ASSERT_TRUE(world.Put({}));
  EXPECT_EQ(world.Stats(kDisk).objects, 0);
  world.store->RunBackground();
  EXPECT_EQ(world.Stats(kDisk).objects, 1);
  EXPECT_EQ(world.Stats(kPool).objects, 1);
  world.Restart();
  const auto lease = world.Read(KeyOf({}));
  ASSERT_TRUE(lease);
  EXPECT_EQ(lease->tier(), TierKind::kDisk);
  EXPECT_EQ(world.Read(KeyOf({}))->tier(), TierKind::kMemory);  // promoted
  EXPECT_EQ(world.store->stats().promotions, 1);
}

TEST(Store, TwoPhasePutWritesInPlace) {
  World world;
  const ObjectMeta meta = MetaOf({});
  auto put = world.store->BeginPut(meta, kObject, {.write_back = false}).value();
  ASSERT_TRUE(put);
  EXPECT_FALSE(world.Read(meta.key));
  const auto bytes = testing::MadeBytes(meta.key, kObject);
  std::copy(bytes.begin(), bytes.end(), put->bytes().begin());
  const std::byte* data = put->bytes().data();
  ASSERT_TRUE(world.store->Commit(std::move(*put)));
  EXPECT_EQ(world.Read(meta.key)->bytes()->bytes().data(), data);
  world.store->RunBackground();
  EXPECT_EQ(world.Stats(kDisk).objects, 0);  // as asked
  EXPECT_FALSE(world.store->BeginPut(meta, kObject).value());
}

TEST(Store, APutThatTakesTooLongIsNoPut) {
  World world;
  auto put = world.store->BeginPut(MetaOf({}), kObject).value();
  world.clock.Advance(world.options.put_timeout_us);
  EXPECT_EQ(world.store->Commit(std::move(*put)).error().code, ErrorCode::kTimeout);
  EXPECT_EQ(world.Stats(kMemory).used_bytes, 0U);
}

TEST(Store, AnExpiredReadFails) {
  World world;
  ASSERT_TRUE(world.Put({}));
  auto lease = world.Read(KeyOf({}), {.lease_us = 1000}).value();
  auto renewed = world.Read(KeyOf({}), {.lease_us = 1000}).value();
  world.clock.Advance(999);
  EXPECT_TRUE(lease.bytes());
  EXPECT_TRUE(renewed.Renew(1000));
  world.clock.Advance(1);
  EXPECT_EQ(lease.bytes().error().code, ErrorCode::kTimeout);
  EXPECT_EQ(lease.Check().error().code, ErrorCode::kTimeout);
  EXPECT_EQ(lease.Renew(1000).error().code, ErrorCode::kTimeout);
  EXPECT_TRUE(renewed.Check());
  world.store->RunBackground();
  EXPECT_EQ(world.store->stats().expired_leases, 1);
  // Once it was seen to have expired, a clock that goes back does not revive it.
  world.clock.Advance(-500);
  EXPECT_FALSE(lease.Check());
}

TEST(Store, AForgottenLeaseGivesItsMemoryBack) {
  World world(SmallOptions(2));
  ASSERT_TRUE(world.Put({.chunk = 0}));
  ASSERT_TRUE(world.Put({.chunk = 1}));
  world.store->RunBackground();
  const auto a = world.Read(KeyOf({.chunk = 0})).value();
  const auto b = world.Read(KeyOf({.chunk = 1})).value();
  EXPECT_EQ(world.Put({.chunk = 2}).error().code, ErrorCode::kExhausted);
  world.clock.Advance(world.options.lease_us);
  world.store->RunBackground();
  EXPECT_TRUE(world.Put({.chunk = 2}));
  EXPECT_FALSE(a.bytes());
  EXPECT_EQ(a.meta().key, KeyOf({.chunk = 0}));
}

TEST(Store, LeasesOutliveTheStore) {
  World world;
  ASSERT_TRUE(world.Put({}));
  const auto lease = world.Read(KeyOf({})).value();
  world.store = nullptr;
  EXPECT_TRUE(IsIntact(KeyOf({}), lease.bytes()->bytes()));
}

TEST(Store, LookupTellsEveryEncodingOnceUnderItsFastestTier) {
  World world;
  for (const int chunk : {0, 1, 3}) {
    ASSERT_TRUE(world.Put({.chunk = chunk}));
  }
  ASSERT_TRUE(world.Put({.chunk = 2, .profile = 5, .quality = {kv::Fidelity::kLossy, 0.9F}}));
  ASSERT_TRUE(world.Put({.chunk = 1, .profile = 6, .quality = {kv::Fidelity::kLossy, 0.8F}}));
  world.store->RunBackground();
  world.Restart();  // memory and pool are empty now
  ASSERT_TRUE(world.Reads({.chunk = 0}));
  const auto request = MadeRequest(1, 5 * kChunkBlocks);
  const LookupResult exact = world.store->Lookup(QueryOf(request), {});
  ASSERT_EQ(exact.objects.size(), 5U);
  EXPECT_EQ(exact.objects.front().info.tier, TierKind::kMemory);
  EXPECT_EQ(exact.objects.back().info.tier, TierKind::kDisk);
  EXPECT_EQ(exact.coverage.prefix_blocks, 2 * kChunkBlocks);
  EXPECT_EQ(exact.coverage.gaps, (std::vector<BlockRun>{{2 * kChunkBlocks, 3 * kChunkBlocks}}));
  const LookupResult lossy =
      world.store->Lookup(QueryOf(request), {.allow_lossy = true, .q_min = 0.9F});
  EXPECT_EQ(lossy.coverage.prefix_blocks, 4 * kChunkBlocks);
  // Nothing of it for a reader whose arithmetic differs.
  EXPECT_TRUE(world.store->Lookup(QueryOf(request, {}, 8), {}).objects.empty());
}

TEST(Store, OneLookupIsOneCallPerTier) {
  World world;
  const auto request = MadeRequest(1, 1000);
  const int64_t before = world.pool->calls();
  (void)world.store->Lookup(QueryOf(request), {});
  EXPECT_EQ(world.pool->calls(), before + 1);
  (void)world.store->Lookup(QueryOf(request), {}, {.local_only = true});
  EXPECT_EQ(world.pool->calls(), before + 1);
  EXPECT_EQ(world.Stats(kMemory).lookups, 2);
}

TEST(Store, ADeadPoolIsAMissAndIsNamed) {
  World world;
  ASSERT_TRUE(world.Put({}));
  world.pool->SetDown(true);
  const auto request = MadeRequest(1, 2 * kChunkBlocks);
  const LookupResult result = world.store->Lookup(QueryOf(request), {});
  EXPECT_EQ(result.failed, std::vector<TierKind>{TierKind::kRemote});
  EXPECT_EQ(result.coverage.prefix_blocks, kChunkBlocks);
  EXPECT_TRUE(world.Reads({}));
  EXPECT_EQ(world.Read(KeyOf({.chunk = 1})).error().code, ErrorCode::kUnavailable);
  world.store->RunBackground();
  const StoreStats stats = world.store->stats();
  EXPECT_EQ(stats.write_backs, 1);  // the disk's
  EXPECT_EQ(stats.write_backs_dropped, 1);
  EXPECT_EQ(stats.lookup_failures, 1);
  EXPECT_EQ(stats.queued_bytes, 0U);
}

TEST(Store, DamageOnDiskIsHealedFromThePool) {
  World world;
  ASSERT_TRUE(world.Put({}));
  world.store->RunBackground();
  ASSERT_TRUE(world.store->stats().write_backs == 2);
  FakeTier* pool = world.pool;
  (void)pool;
  // Push it out of memory, then let the disk return wrong bits.
  for (int chunk = 1; chunk < 10; ++chunk) {
    ASSERT_TRUE(world.Put({.chunk = chunk}));
    world.store->RunBackground();
  }
  world.files.SetReadFlips(1);
  const auto lease = world.Read(KeyOf({})).value();
  EXPECT_EQ(lease.tier(), TierKind::kRemote);
  EXPECT_TRUE(IsIntact(KeyOf({}), lease.bytes()->bytes()));
  EXPECT_EQ(world.Stats(kDisk).corrupt, 1);
  // What came from the pool goes back to the disk.
  world.files.HealAll();
  world.store->RunBackground();
  const ObjectKey key = KeyOf({});
  EXPECT_EQ(world.Stats(kDisk).objects, 10);
  EXPECT_TRUE(world.Read(key));
}

TEST(Store, WriteBackOnReuseSparesWhatNeverComesBack) {
  StoreOptions options = SmallOptions();
  options.write_back = WriteBack::kOnReuse;
  World world(options);
  for (int chunk = 0; chunk < 5; ++chunk) {
    ASSERT_TRUE(world.Put({.chunk = chunk}));
  }
  ASSERT_TRUE(world.Reads({.chunk = 3}));
  ASSERT_TRUE(world.Reads({.chunk = 3}));
  world.store->RunBackground();
  EXPECT_EQ(world.Stats(kDisk).objects, 1);
  EXPECT_EQ(world.Stats(kDisk).duplicates, 0);
}

TEST(Store, ADiskThatIsFullIsSaidOnceAndThatItWorksAgain) {
  World world;
  const auto said = [&](int chunk) {
    ::testing::internal::CaptureStderr();
    EXPECT_TRUE(world.Put({.chunk = chunk}));
    world.store->RunBackground();
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said(0), "");
  world.files.SetCapacity(1000);
  EXPECT_NE(said(1).find("the KV store's disk does not work"), std::string::npos);
  EXPECT_EQ(said(2), "");
  world.files.HealAll();
  EXPECT_NE(said(3).find("the KV store's disk works again"), std::string::npos);
}

TEST(Store, AFullWriteBackQueueDropsAndCounts) {
  StoreOptions options = SmallOptions();
  options.write_back_queue_bytes = 2 * kObject;
  World world(options);
  for (int chunk = 0; chunk < 5; ++chunk) {
    ASSERT_TRUE(world.Put({.chunk = chunk}));
  }
  EXPECT_EQ(world.store->stats().write_backs_dropped, 6);  // three, for two tiers
  world.store->RunBackground();
  EXPECT_EQ(world.Stats(kDisk).objects, 2);
  EXPECT_TRUE(world.Reads({.chunk = 4}));
}

TEST(Store, PrefetchPromotesInTheBackground) {
  World world;
  ASSERT_TRUE(world.Put({}));
  world.store->RunBackground();
  world.Restart();
  const ObjectKey key = KeyOf({});
  EXPECT_TRUE(world.store->Prefetch({&key, 1}));
  EXPECT_EQ(world.Stats(kMemory).objects, 0);
  world.store->RunBackground();
  EXPECT_EQ(world.Read(key)->tier(), TierKind::kMemory);
}

TEST(Store, PinBringsAnObjectToMemoryAndKeepsIt) {
  World world(SmallOptions(4));
  ASSERT_TRUE(world.Put({}));
  world.store->RunBackground();
  world.Restart();
  ASSERT_TRUE(world.store->Pin(KeyOf({}), PinKind::kHard, 0));
  for (int chunk = 1; chunk < 10; ++chunk) {
    ASSERT_TRUE(world.Put({.chunk = chunk}));
    world.store->RunBackground();
  }
  EXPECT_EQ(world.Read(KeyOf({}))->tier(), TierKind::kMemory);
  EXPECT_EQ(world.store->Pin(KeyOf({.chunk = 77}), PinKind::kHard, 0).error().code,
            ErrorCode::kNotFound);
}

TEST(Store, RemovalReachesEveryTierAndTheQueues) {
  World world;
  const TenantId tenant = TenantId::FromName("acme");
  ASSERT_TRUE(world.Put({.chunk = 0, .tenant = tenant}));
  ASSERT_TRUE(world.Put({.chunk = 0}));
  world.store->RunBackground();
  ASSERT_TRUE(world.Put({.chunk = 1, .tenant = tenant}));  // queued
  RemoveFilter filter;
  filter.tenant = tenant;
  EXPECT_EQ(world.store->RemoveMatching(filter).value(), 4);  // three tiers of one, one of another
  world.store->RunBackground();
  EXPECT_FALSE(world.Reads({.chunk = 0, .tenant = tenant}));
  EXPECT_FALSE(world.Reads({.chunk = 1, .tenant = tenant}));
  EXPECT_TRUE(world.Reads({.chunk = 0}));
  world.Restart();
  EXPECT_FALSE(world.Reads({.chunk = 0, .tenant = tenant}));
  EXPECT_EQ(world.store->stats().queued_bytes, 0U);
}

TEST(Store, APromotionUnderWayDoesNotBringBackWhatIsRemoved) {
  World world;
  ASSERT_TRUE(world.Put({}));
  world.store->RunBackground();
  const Object object = ObjectOf({}, kObject);
  ASSERT_EQ(world.store->Remove({&object.meta->key, 1}).value(), 3);
  // Only in the pool now; the removal comes while the read is under way.
  ASSERT_TRUE(testing::PutOne(*world.pool, object));
  bool removed = false;
  world.pool->SetDuringGet([&] {
    if (!std::exchange(removed, true)) {
      EXPECT_EQ(world.store->Remove({&object.meta->key, 1}).value(), 1);
    }
  });
  EXPECT_TRUE(world.Read(object.meta->key));  // the reader was first
  EXPECT_FALSE(world.Read(object.meta->key));
  EXPECT_EQ(world.Stats(kMemory).objects, 0);
}

TEST(Store, EventsTellBlocksOncePerTier) {
  World world;
  const Object first = ObjectOf({.chunk = 1}, kObject);
  ASSERT_TRUE(world.Put({.chunk = 1}));
  ASSERT_TRUE(world.Put({.chunk = 1, .profile = 2}));  // another encoding: no news
  ASSERT_TRUE(world.Put({.chunk = 5, .profile = CollectingSink::kUntold}));
  world.store->RunBackground();
  std::vector<kv::BlockEvent> events = world.events->Take();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].kind, kv::BlockEventKind::kStored);
  EXPECT_EQ(events[0].medium, kv::BlockMedium::kMemory);
  EXPECT_EQ(events[0].blocks, first.meta->blocks);
  EXPECT_EQ(events[0].parent, testing::MadeHash(1, kChunkBlocks - 1));
  EXPECT_EQ(events[1].medium, kv::BlockMedium::kDisk);
  world.Restart();  // what is found on disk is told
  events = world.events->Take();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].medium, kv::BlockMedium::kDisk);
  EXPECT_EQ(events[0].blocks, first.meta->blocks);
  const ObjectKey key = KeyOf({.chunk = 1});
  ASSERT_TRUE(world.store->Remove({&key, 1}));
  EXPECT_TRUE(world.events->Take().empty());  // the other encoding is there
  const ObjectKey other = KeyOf({.chunk = 1, .profile = 2});
  ASSERT_TRUE(world.store->Remove({&other, 1}));
  events = world.events->Take();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, kv::BlockEventKind::kRemoved);
  EXPECT_EQ(events[0].blocks, first.meta->blocks);
  const Object second = ObjectOf({.chunk = 2}, kObject);
  ASSERT_TRUE(world.Put({.chunk = 2}));
  (void)world.events->Take();
  ASSERT_TRUE(world.store->RemoveMatching({}));
  events = world.events->Take();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, kv::BlockEventKind::kRemoved);
  EXPECT_EQ(events[0].blocks, second.meta->blocks);
}

// Random use against what was ever put and not removed. Whatever happens, bytes are right, budgets
// hold, and at the end nothing is left anywhere.
TEST(StoreProperty, NeverWrongNeverLeaking) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    StoreOptions options = SmallOptions(10);
    options.memory.high_watermark = 0.95;
    options.memory.low_watermark = 0.8;
    options.memory.catalog.eviction = seed % 2 == 0 ? EvictionKind::kLru : EvictionKind::kS3Fifo;
    options.memory.catalog.quotas_bytes[TenantId{1}] = options.memory.budget_bytes / 3;
    options.write_back = seed % 3 == 0 ? WriteBack::kOnReuse : WriteBack::kOnPut;
    options.write_back_queue_bytes = 4 * kObject;
    options.lease_us = 200;
    options.put_timeout_us = 300;
    World world(options, seed);
    std::map<uint64_t, int64_t> expires_us;  // what may be there, by digest, and until when
    std::vector<ReadLease> leases;
    std::vector<PendingPut> puts;
    const auto remember = [&](const ObjectMeta& meta) {
      // A tier below counts the time anew from when the object reached it.
      expires_us[meta.key.Digest()] = kNoDeadline;
    };
    for (int step = 0; step < 400; ++step) {
      world.clock.Advance(1 + static_cast<int64_t>(rng.Below(10)));
      MadeObject made;
      made.conversation = rng.Below(3);
      made.chunk = static_cast<int>(rng.Below(6));
      made.profile = rng.Below(4);
      made.tenant.value = rng.Below(2);
      made.ttl_us = rng.Below(4) == 0 ? 400 : 0;
      const ObjectKey key = KeyOf(made);
      switch (rng.Below(12)) {
        case 0:
        case 1:
          if (world.Put(made, 100 + rng.Below(kObject))) {
            remember(MetaOf(made));
          }
          break;
        case 2:
          if (auto put = world.store->BeginPut(MetaOf(made), 100 + rng.Below(kObject));
              put && *put && puts.size() < 3) {
            const auto bytes = testing::MadeBytes((*put)->meta().key, (*put)->bytes().size());
            std::copy(bytes.begin(), bytes.end(), (*put)->bytes().begin());
            puts.push_back(std::move(**put));
          }
          break;
        case 3:
          if (!puts.empty()) {
            const ObjectMeta meta = puts.back().meta();
            const bool in_time = world.clock.NowMicros() < puts.back().deadline_us();
            if (rng.Below(3) != 0) {
              const auto committed = world.store->Commit(std::move(puts.back()));
              ASSERT_TRUE(in_time || !committed);
              if (committed) {
                remember(meta);
              }
            }
            puts.pop_back();  // aborts, if it was not committed
          }
          break;
        case 4:
        case 5:
        case 6: {
          auto lease = world.Read(key);
          if (lease) {
            ASSERT_TRUE(expires_us.count(key.Digest()) != 0);
            ASSERT_TRUE(IsIntact(key, lease->bytes()->bytes()));
            if (leases.size() < 4) {
              leases.push_back(std::move(*lease));
            }
          }
          break;
        }
        case 7:
          if (!leases.empty()) {
            const size_t i = rng.Below(leases.size());
            const bool late = world.clock.NowMicros() >= leases[i].expires_us();
            const auto bytes = leases[i].bytes();
            ASSERT_EQ(bytes.has_value(), !late);
            if (bytes) {
              ASSERT_TRUE(IsIntact(leases[i].meta().key, bytes->bytes()));
            }
            leases.erase(leases.begin() + static_cast<std::ptrdiff_t>(i));
          }
          break;
        case 8:
          world.store->RunBackground();
          break;
        case 9: {
          ASSERT_TRUE(world.store->Remove({&key, 1}));
          expires_us.erase(key.Digest());
          break;
        }
        case 10: {
          const auto request = MadeRequest(made.conversation, 6 * kChunkBlocks);
          const auto found = world.store->Lookup(QueryOf(request, made.tenant), {});
          std::set<uint64_t> seen;
          for (const FoundObject& object : found.objects) {
            ASSERT_TRUE(seen.insert(object.info.key.Digest()).second);
            ASSERT_TRUE(expires_us.count(object.info.key.Digest()) != 0);
            ASSERT_TRUE(request[object.last_block] == object.info.key.block.content);
            // Promotion could push the next one out.
            ASSERT_TRUE(world.Read(object.info.key, {.promote = false})) << step;
          }
          break;
        }
        default:
          if (rng.Below(4) == 0) {
            leases.clear();
            puts.clear();
            world.Restart();
          } else {
            world.pool->SetDown(false);
            (void)world.store->Pin(key, rng.Below(2) == 0 ? PinKind::kHard : PinKind::kSoft, 300);
          }
      }
      ASSERT_LE(world.Stats(kMemory).used_bytes, options.memory.budget_bytes) << step;
      ASSERT_LE(world.store->stats().queued_bytes, 2 * options.write_back_queue_bytes);
    }
    leases.clear();
    puts.clear();
    ASSERT_TRUE(world.store->RemoveMatching({}));
    world.store->RunBackground();
    const StoreStats stats = world.store->stats();
    EXPECT_EQ(stats.queued_bytes, 0U);
    for (const TierStats& tier : stats.tiers) {
      EXPECT_EQ(tier.objects, 0);
    }
    EXPECT_EQ(stats.tiers[kMemory].used_bytes, 0U);
    EXPECT_EQ(stats.tiers[kPool].used_bytes, 0U);
  }
}

TEST(StoreThreads, BackgroundWritesEverythingDown) {
  SystemClock clock;
  StoreOptions options = SmallOptions(64);
  options.background = true;
  options.disk->folder = kvik::testing::TempPath("threads");
  options.disk->budget_bytes = 1 << 20;
  {
    auto tier = std::make_unique<FakeTier>(clock);
    std::vector<std::unique_ptr<Tier>> remote;
    remote.push_back(std::move(tier));
    const auto store = Store::Open(options, clock, PosixFileSystem(), std::move(remote)).value();
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        Rng rng(17, t);
        for (int step = 0; step < 300; ++step) {
          MadeObject made;
          made.conversation = rng.Below(3);
          made.chunk = static_cast<int>(rng.Below(10));
          const ObjectKey key = KeyOf(made);
          switch (rng.Below(8)) {
            case 0:
            case 1:
            case 2: {
              const Object object = ObjectOf(made, 100 + rng.Below(kObject));
              (void)store->Put(*object.meta, object.bytes);
              break;
            }
            case 3:
              if (rng.Below(10) == 0) {
                (void)store->Remove({&key, 1});
              }
              break;
            case 4:
              (void)store->Prefetch({&key, 1});
              break;
            default: {
              const auto leases = store->Read({&key, 1});
              if (leases.front()) {
                EXPECT_TRUE(IsIntact(key, leases.front()->bytes()->bytes()));
              }
            }
          }
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    const Object last = ObjectOf({.conversation = 9}, kObject);
    ASSERT_TRUE(store->Put(*last.meta, last.bytes));
    store->Flush();
    EXPECT_EQ(store->stats().queued_bytes, 0U);
    const Object unflushed = ObjectOf({.conversation = 10}, kObject);
    ASSERT_TRUE(store->Put(*unflushed.meta, unflushed.bytes));
  }
  const auto store = Store::Open(options, clock, PosixFileSystem()).value();
  for (const uint64_t conversation : {9, 10}) {  // closing finishes what is queued
    const ObjectKey key = KeyOf({.conversation = conversation});
    const auto lease = std::move(store->Read({&key, 1}).front());
    ASSERT_TRUE(lease);
    EXPECT_TRUE(IsIntact(key, lease->bytes()->bytes()));
  }
}

}  // namespace
}  // namespace kvik::store
