// SPDX-License-Identifier: Apache-2.0
#include "store/memory_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <thread>

#include "base/rng.h"
#include "store/testing/made_objects.h"

namespace kvik::store {
namespace {

using testing::GetOne;
using testing::Has;
using testing::IsIntact;
using testing::KeyOf;
using testing::MadeObject;
using testing::MadeRequest;
using testing::MetaOf;
using testing::ObjectOf;
using testing::PutOne;
using testing::QueryOf;

constexpr uint64_t kObject = 1000 - kObjectOverheadBytes + 48;  // bytes of an ordinary object
constexpr uint64_t kCharge = kObject + kObjectOverheadBytes;

// Room for `objects` ordinary ones, with watermarks that do not matter.
MemoryTierOptions OptionsFor(int objects, EvictionKind eviction = EvictionKind::kLru) {
  MemoryTierOptions options;
  options.budget_bytes = kCharge * objects;
  options.high_watermark = 1;
  options.low_watermark = 1;
  options.catalog.max_object_share = 0.5;
  options.catalog.eviction = eviction;
  return options;
}

std::unique_ptr<MemoryTier> Make(const MemoryTierOptions& options, const Clock& clock,
                                 std::shared_ptr<EventSink> events = nullptr) {
  return MemoryTier::Create(options, clock, std::move(events)).value();
}

TEST(MemoryTier, GetsSharesTheBytesThatWerePut) {
  ManualClock clock;
  const auto tier = Make(OptionsFor(4), clock);
  const Object object = ObjectOf({}, kObject);
  ASSERT_TRUE(PutOne(*tier, object));
  const Object got = GetOne(*tier, object.meta->key).value();
  EXPECT_EQ(got.bytes.bytes().data(), object.bytes.bytes().data());
  EXPECT_EQ(GetOne(*tier, KeyOf({.chunk = 1})).error().code, ErrorCode::kNotFound);
  const TierStats stats = tier->stats();
  EXPECT_EQ(stats.hits, 1);
  EXPECT_EQ(stats.misses, 1);
  EXPECT_EQ(stats.used_bytes, kCharge);
}

TEST(MemoryTier, APutIsVisibleWholeOrNotAtAll) {
  ManualClock clock;
  const auto tier = Make(OptionsFor(4), clock);
  const ObjectMeta meta = MetaOf({});
  {
    auto put = tier->BeginPut(meta, kObject, kNoDeadline).value();
    ASSERT_TRUE(put);
    EXPECT_FALSE(Has(*tier, meta.key));
    EXPECT_EQ(tier->used_bytes(), kObject);
  }
  EXPECT_FALSE(Has(*tier, meta.key));  // aborted
  EXPECT_EQ(tier->used_bytes(), 0U);
  auto put = tier->BeginPut(meta, kObject, kNoDeadline).value();
  const auto bytes = testing::MadeBytes(meta.key, kObject);
  std::copy(bytes.begin(), bytes.end(), put->bytes().begin());
  ASSERT_TRUE(tier->Commit(std::move(*put)));
  EXPECT_TRUE(IsIntact(meta.key, GetOne(*tier, meta.key).value().bytes.bytes()));
  EXPECT_FALSE(tier->BeginPut(meta, kObject, kNoDeadline).value());  // there already
}

TEST(MemoryTier, ALatePutIsNoPut) {
  ManualClock clock(100);
  const auto tier = Make(OptionsFor(4), clock);
  auto put = tier->BeginPut(MetaOf({}), kObject, 200).value();
  clock.Set(200);
  EXPECT_EQ(tier->Commit(std::move(*put)).error().code, ErrorCode::kTimeout);
  tier->CheckInvariant(true);
  EXPECT_EQ(tier->used_bytes(), 0U);
}

TEST(MemoryTier, OfTwoWritersOfOneObjectTheFirstCounts) {
  ManualClock clock;
  const auto tier = Make(OptionsFor(4), clock);
  auto a = tier->BeginPut(MetaOf({}), kObject, kNoDeadline).value();
  auto b = tier->BeginPut(MetaOf({}), kObject, kNoDeadline).value();
  const Object first = tier->Commit(std::move(*a)).value();
  const Object second = tier->Commit(std::move(*b)).value();
  EXPECT_EQ(first.bytes.bytes().data(), second.bytes.bytes().data());
  EXPECT_EQ(tier->used_bytes(), kCharge);
}

TEST(MemoryTier, EvictsTheLeastRecentlyUsed) {
  ManualClock clock;
  const auto tier = Make(OptionsFor(3), clock);
  for (int chunk = 0; chunk < 3; ++chunk) {
    ASSERT_TRUE(PutOne(*tier, ObjectOf({.chunk = chunk}, kObject)));
  }
  (void)GetOne(*tier, KeyOf({.chunk = 0}));
  ASSERT_TRUE(PutOne(*tier, ObjectOf({.chunk = 3}, kObject)));
  EXPECT_TRUE(Has(*tier, KeyOf({.chunk = 0})));
  EXPECT_FALSE(Has(*tier, KeyOf({.chunk = 1})));
  EXPECT_EQ(tier->stats().evictions, 1);
}

TEST(MemoryTier, PassingTheHighWatermarkEvictsDownToTheLowOne) {
  ManualClock clock;
  MemoryTierOptions options = OptionsFor(20);
  options.high_watermark = 0.9;
  options.low_watermark = 0.6;
  const auto tier = Make(options, clock);
  for (int chunk = 0; chunk < 18; ++chunk) {
    ASSERT_TRUE(PutOne(*tier, ObjectOf({.chunk = chunk}, kObject)));
  }
  EXPECT_EQ(tier->stats().objects, 18);
  ASSERT_TRUE(PutOne(*tier, ObjectOf({.chunk = 18}, kObject)));
  EXPECT_EQ(tier->stats().objects, 12);
}

TEST(MemoryTier, WhatAReaderHoldsStaysAndIsCharged) {
  ManualClock clock;
  const auto tier = Make(OptionsFor(2), clock);
  ASSERT_TRUE(PutOne(*tier, ObjectOf({.chunk = 0}, kObject)));
  ASSERT_TRUE(PutOne(*tier, ObjectOf({.chunk = 1}, kObject)));
  Object held = GetOne(*tier, KeyOf({.chunk = 0})).value();
  ASSERT_TRUE(PutOne(*tier, ObjectOf({.chunk = 2}, kObject)));  // not the held one went
  EXPECT_TRUE(Has(*tier, KeyOf({.chunk = 0})));
  EXPECT_FALSE(Has(*tier, KeyOf({.chunk = 1})));
  // Removed by request it lives on for its reader, and counts until the reader is done.
  EXPECT_EQ(tier->Remove({&held.meta->key, 1}, kNoDeadline).value(), 1);
  EXPECT_TRUE(IsIntact(held.meta->key, held.bytes.bytes()));
  EXPECT_EQ(tier->used_bytes(), kCharge + kObject);
  held = Object();
  EXPECT_EQ(tier->used_bytes(), kCharge);
  tier->CheckInvariant(true);
}

TEST(MemoryTier, NoRoomIsAnErrorWhenAllIsHeld) {
  ManualClock clock;
  const auto tier = Make(OptionsFor(2), clock);
  ASSERT_TRUE(PutOne(*tier, ObjectOf({.chunk = 0}, kObject)));
  ASSERT_TRUE(PutOne(*tier, ObjectOf({.chunk = 1}, kObject)));
  const Object a = GetOne(*tier, KeyOf({.chunk = 0})).value();
  const Object b = GetOne(*tier, KeyOf({.chunk = 1})).value();
  EXPECT_EQ(PutOne(*tier, ObjectOf({.chunk = 2}, kObject)).error().code, ErrorCode::kExhausted);
  EXPECT_EQ(tier->stats().rejected, 1);
}

TEST(MemoryTier, RefusesWhatIsTooLarge) {
  ManualClock clock;
  const auto tier = Make(OptionsFor(4), clock);
  EXPECT_EQ(PutOne(*tier, ObjectOf({}, 3 * kCharge)).error().code, ErrorCode::kExhausted);
  EXPECT_EQ(tier->BeginPut(MetaOf({}), ~uint64_t{0} / 2, kNoDeadline).error().code,
            ErrorCode::kExhausted);
  EXPECT_EQ(tier->used_bytes(), 0U);
}

TEST(MemoryTier, PinsKeepAndEnd) {
  ManualClock clock;
  MemoryTierOptions options = OptionsFor(4);
  const auto tier = Make(options, clock);
  for (int chunk = 0; chunk < 4; ++chunk) {
    ASSERT_TRUE(PutOne(*tier, ObjectOf({.chunk = chunk}, kObject)));
  }
  ASSERT_TRUE(tier->Pin(KeyOf({.chunk = 0}), PinKind::kHard, 1000));
  ASSERT_TRUE(tier->Pin(KeyOf({.chunk = 1}), PinKind::kHard, 0));
  EXPECT_EQ(tier->Pin(KeyOf({.chunk = 2}), PinKind::kHard, 0).error().code, ErrorCode::kExhausted);
  ASSERT_TRUE(tier->Pin(KeyOf({.chunk = 2}), PinKind::kSoft, 0));
  EXPECT_EQ(tier->Pin(KeyOf({.chunk = 9}), PinKind::kSoft, 0).error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(PutOne(*tier, ObjectOf({.chunk = 4}, kObject)));
  EXPECT_FALSE(Has(*tier, KeyOf({.chunk = 3})));  // the only one without a pin
  ASSERT_TRUE(tier->Pin(KeyOf({.chunk = 4}), PinKind::kSoft, 0));
  ASSERT_TRUE(PutOne(*tier, ObjectOf({.chunk = 5}, kObject)));
  EXPECT_FALSE(Has(*tier, KeyOf({.chunk = 2})));  // soft pins go when nothing else is left
  EXPECT_TRUE(Has(*tier, KeyOf({.chunk = 0})));
  clock.Advance(1000);
  tier->Sweep();
  ASSERT_TRUE(tier->Pin(KeyOf({.chunk = 5}), PinKind::kHard, 0));
  ASSERT_TRUE(PutOne(*tier, ObjectOf({.chunk = 6}, kObject)));
  EXPECT_FALSE(Has(*tier, KeyOf({.chunk = 0})));  // its pin has ended
  EXPECT_TRUE(Has(*tier, KeyOf({.chunk = 1})));
  tier->Unpin(KeyOf({.chunk = 1}));
  tier->CheckInvariant(true);
}

TEST(MemoryTier, ATenantsQuotaIsItsOwn) {
  ManualClock clock;
  MemoryTierOptions options = OptionsFor(10);
  const TenantId a = TenantId::FromName("a");
  options.catalog.quotas_bytes[a] = 3 * kCharge;
  const auto tier = Make(options, clock);
  ASSERT_TRUE(PutOne(*tier, ObjectOf({.conversation = 9}, kObject)));
  for (int chunk = 0; chunk < 5; ++chunk) {
    ASSERT_TRUE(PutOne(*tier, ObjectOf({.chunk = chunk, .tenant = a}, kObject)));
  }
  EXPECT_TRUE(Has(*tier, KeyOf({.conversation = 9})));
  EXPECT_FALSE(Has(*tier, KeyOf({.chunk = 1, .tenant = a})));
  EXPECT_TRUE(Has(*tier, KeyOf({.chunk = 2, .tenant = a})));
  EXPECT_EQ(tier->stats().objects, 4);
  // What one tenant stored another does not find.
  EXPECT_FALSE(Has(*tier, KeyOf({.chunk = 4})));
  const auto request = MadeRequest(1, 20);
  EXPECT_TRUE(tier->Lookup(QueryOf(request), kNoDeadline)->empty());
  EXPECT_EQ(tier->Lookup(QueryOf(request, a), kNoDeadline)->size(), 3U);
  EXPECT_EQ(tier->RemoveMatching({.tenant = a, .domain = {}, .prefix = {}}, kNoDeadline).value(),
            3);
  EXPECT_TRUE(Has(*tier, KeyOf({.conversation = 9})));
}

TEST(MemoryTier, AChunkHasAtMostThreeEncodings) {
  ManualClock clock;
  const auto tier = Make(OptionsFor(10), clock);
  for (const uint64_t profile : {1, 2, 3}) {
    ASSERT_TRUE(PutOne(*tier, ObjectOf({.profile = profile}, kObject)));
  }
  (void)GetOne(*tier, KeyOf({.profile = 1}));
  ASSERT_TRUE(PutOne(*tier, ObjectOf({.profile = 4}, kObject)));
  EXPECT_TRUE(Has(*tier, KeyOf({.profile = 1})));
  EXPECT_FALSE(Has(*tier, KeyOf({.profile = 2})));
  const auto request = MadeRequest(1, testing::kChunkBlocks);
  EXPECT_EQ(tier->Lookup(QueryOf(request), kNoDeadline)->size(), 3U);
}

TEST(MemoryTier, LookupFindsChunksBehindGapsAndNoOtherNumerics) {
  ManualClock clock;
  const auto tier = Make(OptionsFor(10), clock);
  for (const int chunk : {0, 1, 3}) {
    ASSERT_TRUE(PutOne(*tier, ObjectOf({.chunk = chunk}, kObject)));
  }
  const auto request = MadeRequest(1, 5 * testing::kChunkBlocks);
  const auto found = tier->Lookup(QueryOf(request), kNoDeadline).value();
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[2].last_block, 4 * testing::kChunkBlocks - 1);
  EXPECT_EQ(found[2].info.num_blocks, testing::kChunkBlocks);
  EXPECT_TRUE(tier->Lookup(QueryOf(request, {}, 8), kNoDeadline)->empty());
  const auto other_domain = MadeRequest(1, 5 * testing::kChunkBlocks, 2);
  EXPECT_TRUE(tier->Lookup(QueryOf(other_domain), kNoDeadline)->empty());
}

TEST(MemoryTier, ObjectsEndWithTheirTimeToLive) {
  ManualClock clock;
  const auto tier = Make(OptionsFor(10), clock);
  ASSERT_TRUE(PutOne(*tier, ObjectOf({.chunk = 0, .ttl_us = 1000}, kObject)));
  ASSERT_TRUE(PutOne(*tier, ObjectOf({.chunk = 1}, kObject)));
  clock.Advance(999);
  EXPECT_TRUE(Has(*tier, KeyOf({.chunk = 0})));
  clock.Advance(1);
  EXPECT_FALSE(Has(*tier, KeyOf({.chunk = 0})));
  EXPECT_FALSE(GetOne(*tier, KeyOf({.chunk = 0})));
  tier->Sweep();
  EXPECT_EQ(tier->stats().objects, 1);
  EXPECT_EQ(tier->stats().expirations, 1);
}

TEST(MemoryTier, AScanDoesNotFlushWhatIsUsed) {
  const auto hot_left = [](EvictionKind eviction) {
    ManualClock clock;
    const auto tier = Make(OptionsFor(100, eviction), clock);
    const auto use = [&](uint64_t conversation, int chunk) {
      if (!GetOne(*tier, KeyOf({.conversation = conversation, .chunk = chunk}))) {
        EXPECT_TRUE(
            PutOne(*tier, ObjectOf({.conversation = conversation, .chunk = chunk}, kObject)));
      }
    };
    for (int round = 0; round < 3; ++round) {
      for (int chunk = 0; chunk < 50; ++chunk) {
        use(1, chunk);
      }
    }
    for (int chunk = 0; chunk < 500; ++chunk) {
      use(2, chunk);
    }
    int left = 0;
    for (int chunk = 0; chunk < 50; ++chunk) {
      left += Has(*tier, KeyOf({.conversation = 1, .chunk = chunk})) ? 1 : 0;
    }
    return left;
  };
  EXPECT_EQ(hot_left(EvictionKind::kLru), 0);
  EXPECT_EQ(hot_left(EvictionKind::kS3Fifo), 50);
}

TEST(MemoryTier, OptionsAreChecked) {
  ManualClock clock;
  MemoryTierOptions options;
  options.low_watermark = 0.99;
  options.high_watermark = 0.98;
  EXPECT_EQ(MemoryTier::Create(options, clock).error().code, ErrorCode::kInvalidInput);
  options = {};
  options.catalog.max_encodings = 0;
  EXPECT_EQ(MemoryTier::Create(options, clock).error().code, ErrorCode::kInvalidInput);
}

// The tier under LRU, written as plainly as possible.
class NaiveTier {
 public:
  explicit NaiveTier(MemoryTierOptions options) : options_(std::move(options)) {}
  struct Item {
    ObjectMeta meta;
    uint64_t charge;
    int64_t expires_us;
    PinKind pin = PinKind::kNone;
    int64_t pin_until_us = kNoDeadline;
    bool held = false;
    int64_t order_turn = 0;  // position in its eviction list
    int64_t use_turn = 0;
  };
  std::vector<Item> items;
  uint64_t orphaned = 0;  // removed while a reader holds them

  Item* Find(const ObjectKey& key) {
    for (Item& item : items) {
      if (item.meta.key == key) {
        return &item;
      }
    }
    return nullptr;
  }
  uint64_t Used() const {
    uint64_t used = orphaned;
    for (const Item& item : items) {
      used += item.charge;
    }
    return used;
  }
  void Expire(int64_t now_us) {
    for (Item& item : items) {
      if (item.pin != PinKind::kNone && item.pin_until_us <= now_us) {
        expired_pins_.push_back({item.pin_until_us, item.meta.key});
      }
    }
    for (const auto& [end, key] : expired_pins_) {
      Pin(*Find(key), PinKind::kNone, 0, now_us);
    }
    expired_pins_.clear();
    for (size_t i = 0; i < items.size();) {
      if (items[i].expires_us <= now_us) {
        Erase(i);
      } else {
        ++i;
      }
    }
  }
  void Pin(Item& item, PinKind kind, int64_t ttl_us, int64_t now_us) {
    item.pin = kind;
    item.pin_until_us = ttl_us == 0 || kind == PinKind::kNone ? kNoDeadline : now_us + ttl_us;
    item.order_turn = ++turn_;
  }
  uint64_t HardPinned() const {
    uint64_t bytes = 0;
    for (const Item& item : items) {
      bytes += item.pin == PinKind::kHard ? item.charge : 0;
    }
    return bytes;
  }
  void Use(Item& item) { item.order_turn = item.use_turn = ++turn_; }
  void Erase(size_t i) {
    orphaned += items[i].held ? items[i].charge - kObjectOverheadBytes : 0;
    items.erase(items.begin() + static_cast<std::ptrdiff_t>(i));
  }
  // Whether the put succeeds.
  bool Put(const ObjectMeta& meta, uint64_t size_bytes, int64_t now_us) {
    Expire(now_us);
    if (Find(meta.key) != nullptr) {
      return true;
    }
    const uint64_t charge = size_bytes + kObjectOverheadBytes;
    const double budget = static_cast<double>(options_.budget_bytes);
    const auto quota = options_.catalog.quotas_bytes.find(meta.key.tenant);
    const bool has_quota = quota != options_.catalog.quotas_bytes.end();
    if (charge > static_cast<uint64_t>(budget * options_.catalog.max_object_share) ||
        (has_quota && charge > quota->second)) {
      return false;
    }
    std::vector<ObjectKey> victims;
    int encodings = 0;
    const Item* oldest = nullptr;
    for (const Item& item : items) {
      if (item.meta.key.block == meta.key.block && item.meta.key.tenant == meta.key.tenant) {
        ++encodings;
        if (!item.held && item.pin != PinKind::kHard &&
            (oldest == nullptr || item.use_turn < oldest->use_turn)) {
          oldest = &item;
        }
      }
    }
    if (encodings >= options_.catalog.max_encodings) {
      if (oldest == nullptr) {
        return false;
      }
      victims.push_back(oldest->meta.key);
    }
    const auto of_tenant = [&] {
      uint64_t bytes = 0;
      for (const Item& item : items) {
        if (item.meta.key.tenant == meta.key.tenant &&
            std::find(victims.begin(), victims.end(), item.meta.key) == victims.end()) {
          bytes += item.charge;
        }
      }
      return bytes;
    };
    while (has_quota && of_tenant() + charge > quota->second) {
      const Item* next = nullptr;
      for (const Item& item : items) {
        if (item.meta.key.tenant == meta.key.tenant && !item.held && item.pin != PinKind::kHard &&
            std::find(victims.begin(), victims.end(), item.meta.key) == victims.end() &&
            (next == nullptr || item.use_turn < next->use_turn)) {
          next = &item;
        }
      }
      if (next == nullptr) {
        return false;
      }
      victims.push_back(next->meta.key);
    }
    for (const ObjectKey& key : victims) {
      Erase(static_cast<size_t>(Find(key) - items.data()));
    }
    if (Used() + charge > static_cast<uint64_t>(budget * options_.high_watermark)) {
      while (Used() + charge > static_cast<uint64_t>(budget * options_.low_watermark)) {
        const Item* next = nullptr;
        for (const PinKind kind : {PinKind::kNone, PinKind::kSoft}) {
          for (const Item& item : items) {
            if (!item.held && item.pin == kind &&
                (next == nullptr || (next->pin == kind && item.order_turn < next->order_turn))) {
              next = &item;
            }
          }
        }
        if (next == nullptr) {
          break;
        }
        Erase(static_cast<size_t>(next - items.data()));
      }
      if (Used() + charge > options_.budget_bytes) {
        return false;
      }
    }
    Item item{meta, charge, meta.ttl_us == 0 ? kNoDeadline : now_us + meta.ttl_us};
    item.order_turn = item.use_turn = ++turn_;
    items.push_back(std::move(item));
    return true;
  }

 private:
  MemoryTierOptions options_;
  int64_t turn_ = 0;
  std::vector<std::pair<int64_t, ObjectKey>> expired_pins_;
};

TEST(MemoryTierProperty, BehavesAsTheNaiveOneAndNeverLeaks) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    ManualClock clock;
    MemoryTierOptions options = OptionsFor(12);
    options.high_watermark = 0.95;
    options.low_watermark = 0.8;
    options.catalog.max_object_share = 0.3;
    options.catalog.quotas_bytes[TenantId{1}] = 4 * kCharge;
    const auto tier = Make(options, clock);
    NaiveTier naive(options);
    std::map<uint64_t, Object> held;  // by digest
    for (int step = 0; step < 600; ++step) {
      clock.Advance(1 + static_cast<int64_t>(rng.Below(5)));
      const int64_t now = clock.NowMicros();
      MadeObject made;
      made.conversation = rng.Below(3);
      made.chunk = static_cast<int>(rng.Below(6));
      made.profile = rng.Below(5);
      made.tenant.value = rng.Below(2);
      made.ttl_us = rng.Below(4) == 0 ? 50 + static_cast<int64_t>(rng.Below(200)) : 0;
      const ObjectKey key = KeyOf(made);
      switch (rng.Below(9)) {
        case 0:
        case 1:
        case 2: {
          const size_t size = rng.Below(12) == 0 ? 6 * kCharge : 100 + rng.Below(kObject);
          const bool expected = naive.Put(MetaOf(made), size, now);
          ASSERT_EQ(PutOne(*tier, ObjectOf(made, size)).has_value(), expected) << step;
          break;
        }
        case 3: {  // two-phase; begun and given up, every other time
          const size_t size = 100 + rng.Below(kObject);
          auto put = tier->BeginPut(MetaOf(made), size, kNoDeadline);
          const bool there = naive.Find(key) != nullptr && naive.Find(key)->expires_us > now;
          const bool expected = naive.Put(MetaOf(made), size, now);
          ASSERT_EQ(put.has_value(), expected) << step;
          if (expected && put->has_value()) {
            ASSERT_FALSE(there);
            const auto bytes = testing::MadeBytes(key, size);
            std::copy(bytes.begin(), bytes.end(), (*put)->bytes().begin());
            if (rng.Below(2) == 0) {
              ASSERT_TRUE(tier->Commit(std::move(**put))) << step;
            } else {
              naive.Erase(static_cast<size_t>(naive.Find(key) - naive.items.data()));
            }
          }
          break;
        }
        case 4:
        case 5: {
          auto got = GetOne(*tier, key);
          NaiveTier::Item* item = naive.Find(key);
          const bool expected = item != nullptr && item->expires_us > now;
          ASSERT_EQ(got.has_value(), expected) << step;
          if (expected) {
            ASSERT_TRUE(IsIntact(key, got->bytes.bytes()));
            naive.Use(*item);
            if (rng.Below(4) == 0 && held.size() < 3) {
              item->held = true;
              held[key.Digest()] = std::move(*got);
            }
          }
          break;
        }
        case 6: {
          if (!held.empty()) {
            auto& [digest, object] = *held.begin();
            if (NaiveTier::Item* item = naive.Find(object.meta->key);
                item != nullptr && item->held) {
              item->held = false;
            } else {
              naive.orphaned -= object.bytes.size_bytes();
            }
            held.erase(held.begin());
          }
          break;
        }
        case 7: {
          naive.Expire(now);
          NaiveTier::Item* item = naive.Find(key);
          const bool hard = rng.Below(2) == 0;
          const int64_t ttl = static_cast<int64_t>(rng.Below(100));
          const auto pinned = tier->Pin(key, hard ? PinKind::kHard : PinKind::kSoft, ttl);
          const bool fits =
              item != nullptr && (!hard || item->pin == PinKind::kHard ||
                                  naive.HardPinned() + item->charge <= options.budget_bytes / 2);
          ASSERT_EQ(pinned.has_value(), fits) << step;
          if (fits) {
            naive.Pin(*item, hard ? PinKind::kHard : PinKind::kSoft, ttl, now);
          }
          break;
        }
        case 8: {
          naive.Expire(now);
          const bool expected = naive.Find(key) != nullptr;
          if (expected) {
            naive.Erase(static_cast<size_t>(naive.Find(key) - naive.items.data()));
          }
          ASSERT_EQ(tier->Remove({&key, 1}, kNoDeadline).value(), expected ? 1 : 0) << step;
          break;
        }
      }
      tier->Sweep();
      naive.Expire(now);
      ASSERT_EQ(tier->used_bytes(), naive.Used()) << step;
      ASSERT_EQ(tier->stats().objects, static_cast<int64_t>(naive.items.size())) << step;
      for (const NaiveTier::Item& item : naive.items) {
        ASSERT_TRUE(Has(*tier, item.meta.key)) << step;
      }
      tier->CheckInvariant(false);
    }
    held.clear();
    tier->CheckInvariant(true);
    EXPECT_TRUE(tier->RemoveMatching({}, kNoDeadline));
    EXPECT_EQ(tier->used_bytes(), 0U);
  }
}

TEST(MemoryTierThreads, MixedUseEndsIdleAndWhole) {
  SystemClock clock;
  MemoryTierOptions options = OptionsFor(20, EvictionKind::kS3Fifo);
  options.high_watermark = 0.95;
  options.low_watermark = 0.8;
  const auto tier = Make(options, clock);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Rng rng(3, t);
      for (int step = 0; step < 2000; ++step) {
        MadeObject made;
        made.conversation = rng.Below(4);
        made.chunk = static_cast<int>(rng.Below(10));
        made.profile = rng.Below(4);
        const ObjectKey key = KeyOf(made);
        switch (rng.Below(4)) {
          case 0:
            (void)PutOne(*tier, ObjectOf(made, 100 + rng.Below(kObject)));
            break;
          case 1:
            if (auto put = tier->BeginPut(MetaOf(made), 300, kNoDeadline); put && *put) {
              const auto bytes = testing::MadeBytes(key, 300);
              std::copy(bytes.begin(), bytes.end(), (*put)->bytes().begin());
              (void)tier->Commit(std::move(**put));
            }
            break;
          case 2:
            if (auto got = GetOne(*tier, key)) {
              EXPECT_TRUE(IsIntact(key, got->bytes.bytes()));
            }
            break;
          default:
            (void)tier->Remove({&key, 1}, kNoDeadline);
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  tier->CheckInvariant(true);
}

}  // namespace
}  // namespace kvik::store
