// SPDX-License-Identifier: Apache-2.0
#include "store/disk_tier.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <thread>

#include "base/crc32c.h"
#include "base/rng.h"
#include "base/testing/temp_path.h"
#include "store/disk_format.h"
#include "store/testing/faulty_files.h"
#include "store/testing/made_objects.h"

namespace kvik::store {
namespace {

using testing::FaultyFiles;
using testing::GetOne;
using testing::Has;
using testing::IsIntact;
using testing::KeyOf;
using testing::MadeObject;
using testing::MadeRequest;
using testing::ObjectOf;
using testing::PutOne;
using testing::QueryOf;

constexpr size_t kObject = 2000;

DiskTierOptions SmallOptions() {
  DiskTierOptions options;
  options.folder = "disk";
  options.budget_bytes = 128 << 10;
  options.segment_bytes = 16 << 10;
  options.catalog.eviction = EvictionKind::kLru;
  return options;
}

std::unique_ptr<DiskTier> Open(FileSystem& files, const Clock& clock,
                               const DiskTierOptions& options = SmallOptions()) {
  return DiskTier::Open(options, clock, files).value();
}

// Every object that is there is right; how many there are.
int CountIntact(DiskTier& tier, int conversations, int chunks) {
  int intact = 0;
  for (int conversation = 0; conversation < conversations; ++conversation) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const ObjectKey key =
          KeyOf({.conversation = static_cast<uint64_t>(conversation), .chunk = chunk});
      if (const auto got = GetOne(tier, key)) {
        EXPECT_TRUE(IsIntact(key, got->bytes.bytes()));
        ++intact;
      }
    }
  }
  return intact;
}

TEST(DiskFormat, HeadersRoundTripAndKnowTheirPlace) {
  RecordInfo info;
  info.segment_id = 7;
  info.offset = 640;
  info.meta_bytes = 128;
  info.payload_bytes = 1000;
  info.payload_crc = 5;
  const RecordHeader header = EncodeRecordHeader(info);
  const auto back = DecodeRecordHeader(header, 7, 640);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->payload_bytes, 1000U);
  EXPECT_TRUE(back->live);
  EXPECT_EQ(back->record_bytes(), 1216U);
  EXPECT_FALSE(DecodeRecordHeader(header, 8, 640));
  EXPECT_FALSE(DecodeRecordHeader(header, 7, 704));
  for (size_t bit = 0; bit < kRecordStateOffset * 8; ++bit) {
    RecordHeader damaged = header;
    damaged[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(DecodeRecordHeader(damaged, 7, 640)) << bit;
  }
  EXPECT_EQ(DecodeSegmentHeader(EncodeSegmentHeader(9)).value(), 9U);
}

TEST(DiskTier, ObjectsSurviveAnOrderlyRestart) {
  FaultyFiles files(1);
  ManualClock clock;
  {
    const auto tier = Open(files, clock);
    for (int chunk = 0; chunk < 20; ++chunk) {
      ASSERT_TRUE(PutOne(*tier, ObjectOf({.conversation = 0, .chunk = chunk}, kObject)));
    }
    EXPECT_EQ(CountIntact(*tier, 1, 20), 20);
  }
  const auto tier = Open(files, clock);
  EXPECT_EQ(tier->recovery().objects, 20);
  EXPECT_EQ(tier->recovery().verified, 0);  // finished segments need no reading
  EXPECT_EQ(CountIntact(*tier, 1, 20), 20);
  const auto request = MadeRequest(0, 20 * testing::kChunkBlocks);
  EXPECT_EQ(tier->Lookup(QueryOf(request), kNoDeadline)->size(), 20U);
  tier->CheckInvariant();
}

TEST(DiskTier, WorksOnRealFiles) {
  ManualClock clock;
  DiskTierOptions options = SmallOptions();
  options.folder = kvik::testing::TempPath("a/b/disk");
  options.sync = DiskSync::kPut;
  {
    const auto tier = Open(PosixFileSystem(), clock, options);
    for (int chunk = 0; chunk < 60; ++chunk) {
      ASSERT_TRUE(PutOne(*tier, ObjectOf({.conversation = 0, .chunk = chunk}, kObject)));
    }
    tier->CheckInvariant();
    EXPECT_EQ(DiskTier::Open(options, clock, PosixFileSystem()).error().code,
              ErrorCode::kUnavailable);  // one process, one folder
  }
  const auto tier = Open(PosixFileSystem(), clock, options);
  EXPECT_EQ(CountIntact(*tier, 1, 60), tier->recovery().objects);
  EXPECT_GT(tier->recovery().objects, 30);
}

TEST(DiskTier, AKilledProcessLosesNothingThatWasWritten) {
  FaultyFiles files(1);
  ManualClock clock;
  auto killed = Open(files, clock);
  for (int chunk = 0; chunk < 20; ++chunk) {
    ASSERT_TRUE(PutOne(*killed, ObjectOf({.conversation = 0, .chunk = chunk}, kObject)));
  }
  // Its files as they are at this moment, without its last words.
  FaultyFiles left(2);
  const std::vector<std::string> names = files.List("disk").value();
  for (const std::string& name : names) {
    const auto from = files.Open("disk/" + name, false).value();
    std::vector<std::byte> bytes(from->SizeBytes().value());
    ASSERT_TRUE(ReadAllAt(*from, 0, bytes));
    ASSERT_TRUE(WriteAllAt(*left.Open("disk/" + name, true).value(), 0, bytes));
  }
  const auto tier = Open(left, clock);
  EXPECT_EQ(tier->recovery().objects, 20);
  EXPECT_GT(tier->recovery().verified, 0);
  EXPECT_EQ(CountIntact(*tier, 1, 20), 20);
}

TEST(DiskTier, ATornTailIsDroppedAndTheRestStays) {
  for (uint64_t cut = 1; cut < 3000; cut += 97) {
    FaultyFiles files(cut);
    ManualClock clock;
    {
      const auto tier = Open(files, clock);
      for (int chunk = 0; chunk < 5; ++chunk) {
        ASSERT_TRUE(PutOne(*tier, ObjectOf({.conversation = 0, .chunk = chunk}, kObject)));
      }
    }
    files.TearTail(64 + cut);  // the end record, and `cut` bytes more
    const auto tier = Open(files, clock);
    const int left = CountIntact(*tier, 1, 5);
    // The padding of the last record is no loss.
    EXPECT_GE(left, cut > 2300 ? 3 : 4) << cut;
    EXPECT_LE(left, 5);
    EXPECT_EQ(tier->recovery().objects, left);
    EXPECT_EQ(tier->recovery().torn_segments, left < 5 ? 1 : 0) << cut;
    ASSERT_TRUE(PutOne(*tier, ObjectOf({.conversation = 1}, kObject)));
    tier->CheckInvariant();
  }
}

TEST(DiskTier, AFlippedBitIsAMissAndCountedNeverWrongData) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    FaultyFiles files(seed);
    ManualClock clock;
    auto tier = Open(files, clock);
    for (int chunk = 0; chunk < 20; ++chunk) {
      ASSERT_TRUE(PutOne(*tier, ObjectOf({.conversation = 0, .chunk = chunk}, kObject)));
    }
    files.FlipStoredBit();
    if (seed % 2 == 0) {
      tier = nullptr;
      tier = Open(files, clock);
    }
    const int left = CountIntact(*tier, 1, 20);
    EXPECT_GE(left, 19);
    if (left == 19) {
      EXPECT_EQ(tier->stats().corrupt, 1);
    }
    EXPECT_EQ(CountIntact(*tier, 1, 20), left);
    EXPECT_LE(tier->stats().corrupt, 1);  // told once
    tier->CheckInvariant();
  }
}

TEST(DiskTier, BitsThatFlipOnTheWayAreMisses) {
  FaultyFiles files(5);
  ManualClock clock;
  const auto tier = Open(files, clock);
  for (int chunk = 0; chunk < 20; ++chunk) {
    ASSERT_TRUE(PutOne(*tier, ObjectOf({.conversation = 0, .chunk = chunk}, kObject)));
  }
  files.SetReadFlips(0.5);
  const int left = CountIntact(*tier, 1, 20);
  EXPECT_LT(left, 20);
  EXPECT_EQ(tier->stats().corrupt, 20 - left);
  tier->CheckInvariant();
}

TEST(DiskTier, AFullDiskIsARefusedPutAndACounter) {
  FaultyFiles files(1);
  ManualClock clock;
  const auto tier = Open(files, clock);
  files.SetCapacity(7000);
  int stored = 0;
  for (int chunk = 0; chunk < 10; ++chunk) {
    const auto put = PutOne(*tier, ObjectOf({.conversation = 0, .chunk = chunk}, kObject));
    stored += put ? 1 : 0;
    if (!put) {
      EXPECT_EQ(put.error().code, ErrorCode::kExhausted);
    }
  }
  EXPECT_EQ(stored, 3);
  EXPECT_EQ(tier->stats().errors, 7);
  EXPECT_EQ(CountIntact(*tier, 1, 10), 3);
  tier->CheckInvariant();
  files.HealAll();
  ASSERT_TRUE(PutOne(*tier, ObjectOf({.conversation = 0, .chunk = 9}, kObject)));
  EXPECT_EQ(CountIntact(*tier, 1, 10), 4);
  tier->CheckInvariant();
}

TEST(DiskTier, AFailedSyncIsTrustedNoMore) {
  FaultyFiles files(1);
  ManualClock clock;
  DiskTierOptions options = SmallOptions();
  options.sync = DiskSync::kPut;
  auto tier = Open(files, clock, options);
  ASSERT_TRUE(PutOne(*tier, ObjectOf({.conversation = 0, .chunk = 0}, kObject)));
  files.SetSyncErrors(1);
  EXPECT_EQ(PutOne(*tier, ObjectOf({.conversation = 0, .chunk = 1}, kObject)).error().code,
            ErrorCode::kUnavailable);
  files.HealAll();
  EXPECT_TRUE(Has(*tier, KeyOf({.conversation = 0, .chunk = 0})));
  EXPECT_FALSE(Has(*tier, KeyOf({.conversation = 0, .chunk = 1})));
  ASSERT_TRUE(PutOne(*tier, ObjectOf({.conversation = 0, .chunk = 2}, kObject)));
  EXPECT_EQ(files.FileCount(), 2U);  // not behind what failed
  files.PowerLoss();
  tier = nullptr;
  tier = Open(files, clock, options);
  EXPECT_EQ(CountIntact(*tier, 1, 3), 2);
}

TEST(DiskTier, WhatWasRemovedStaysRemoved) {
  FaultyFiles files(1);
  ManualClock clock;
  const TenantId tenant = TenantId::FromName("acme");
  auto tier = Open(files, clock);
  for (int chunk = 0; chunk < 10; ++chunk) {
    ASSERT_TRUE(PutOne(*tier, ObjectOf({.chunk = chunk, .tenant = tenant}, kObject)));
    ASSERT_TRUE(PutOne(*tier, ObjectOf({.chunk = chunk}, kObject)));
  }
  RemoveFilter filter;
  filter.tenant = tenant;
  EXPECT_EQ(tier->RemoveMatching(filter, kNoDeadline).value(), 10);
  const ObjectKey one = KeyOf({.chunk = 3});
  EXPECT_EQ(tier->Remove({&one, 1}, kNoDeadline).value(), 1);
  EXPECT_EQ(tier->Remove({&one, 1}, kNoDeadline).value(), 0);
  files.PowerLoss();  // removals are on the device before they return
  tier = nullptr;
  tier = Open(files, clock);
  for (int chunk = 0; chunk < 10; ++chunk) {
    EXPECT_FALSE(Has(*tier, KeyOf({.chunk = chunk, .tenant = tenant})));
  }
  EXPECT_FALSE(Has(*tier, one));
}

TEST(DiskTier, ARemovalTakesWhatWasEvictedLongAgo) {
  FaultyFiles files(1);
  ManualClock clock;
  DiskTierOptions options = SmallOptions();
  options.catalog.max_encodings = 1;
  auto tier = Open(files, clock, options);
  ASSERT_TRUE(PutOne(*tier, ObjectOf({.profile = 1}, kObject)));
  // The eviction of profile 1 cannot be written down, and the object comes back later.
  files.SetWriteErrors(1);
  EXPECT_FALSE(PutOne(*tier, ObjectOf({.profile = 2}, kObject)));
  files.HealAll();
  ASSERT_TRUE(PutOne(*tier, ObjectOf({.profile = 1}, kObject)));
  const ObjectKey key = KeyOf({.profile = 1});
  EXPECT_EQ(tier->Remove({&key, 1}, kNoDeadline).value(), 1);
  files.PowerLoss();
  tier = nullptr;
  tier = Open(files, clock, options);
  EXPECT_FALSE(Has(*tier, key));
}

TEST(DiskTier, ARemovalThatFailsToReachTheDiskSaysSo) {
  FaultyFiles files(1);
  ManualClock clock;
  const auto tier = Open(files, clock);
  ASSERT_TRUE(PutOne(*tier, ObjectOf({}, kObject)));
  files.SetWriteErrors(1);
  const ObjectKey key = KeyOf({});
  EXPECT_EQ(tier->Remove({&key, 1}, kNoDeadline).error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(Has(*tier, key));
  EXPECT_EQ(tier->Remove({&key, 1}, kNoDeadline).error().code, ErrorCode::kUnavailable);
  files.HealAll();
  EXPECT_EQ(tier->Remove({&key, 1}, kNoDeadline).value(), 0);  // made up for
}

TEST(DiskTier, StaysWithinItsBudgetAndKeepsWhatIsUsed) {
  FaultyFiles files(1);
  ManualClock clock;
  DiskTierOptions options = SmallOptions();
  options.catalog.eviction = EvictionKind::kS3Fifo;
  const auto tier = Open(files, clock, options);
  for (int round = 0; round < 300; ++round) {
    ASSERT_TRUE(PutOne(*tier, ObjectOf({.conversation = 2, .chunk = round}, kObject)));
    for (int chunk = 0; chunk < 4; ++chunk) {  // a small set that is read all the time
      if (!GetOne(*tier, KeyOf({.conversation = 0, .chunk = chunk}))) {
        ASSERT_TRUE(PutOne(*tier, ObjectOf({.conversation = 0, .chunk = chunk}, kObject)));
      }
    }
    ASSERT_LE(files.TotalBytes(), options.budget_bytes);
    tier->CheckInvariant();
  }
  // Used ones were moved out of the segments that were taken back.
  EXPECT_LT(tier->stats().misses, 20);
  EXPECT_GT(tier->stats().objects, 25);
}

TEST(DiskTier, ASmallerBudgetEvictsAtOpening) {
  FaultyFiles files(1);
  ManualClock clock;
  DiskTierOptions options = SmallOptions();
  {
    const auto tier = Open(files, clock, options);
    for (int chunk = 0; chunk < 40; ++chunk) {
      ASSERT_TRUE(PutOne(*tier, ObjectOf({.conversation = 0, .chunk = chunk}, kObject)));
    }
  }
  options.budget_bytes = 64 << 10;
  options.catalog.max_encodings = 1;
  const auto tier = Open(files, clock, options);
  EXPECT_LE(files.TotalBytes(), options.budget_bytes);
  tier->CheckInvariant();
  EXPECT_GT(CountIntact(*tier, 1, 40), 10);
}

TEST(DiskTier, ExpiredObjectsAreGoneAndStayGone) {
  FaultyFiles files(1);
  ManualClock clock;
  auto tier = Open(files, clock);
  ASSERT_TRUE(PutOne(*tier, ObjectOf({.ttl_us = 1000}, kObject)));
  clock.Advance(1000);
  EXPECT_FALSE(Has(*tier, KeyOf({})));
  EXPECT_FALSE(GetOne(*tier, KeyOf({})));
  tier->Sweep();
  EXPECT_EQ(tier->stats().expirations, 1);
  tier = nullptr;
  EXPECT_EQ(Open(files, clock)->recovery().objects, 0);
}

// The clock of a machine begins anew when that starts: it may say less than before, or much more.
TEST(DiskTier, TimesToLiveCountAnewFromARestartWhateverTheClockSaysThen) {
  constexpr int64_t kTtlUs = 1'000'000;
  FaultyFiles files(1);
  ManualClock before(int64_t{3600} * 1'000'000);
  auto tier = Open(files, before);
  ASSERT_TRUE(PutOne(*tier, ObjectOf({.ttl_us = kTtlUs}, kObject)));
  before.Advance(kTtlUs - 1);
  for (const int64_t now_us : {int64_t{0}, int64_t{86'400} * 365 * 1'000'000, int64_t{5}}) {
    SCOPED_TRACE(now_us);
    tier = nullptr;
    ManualClock clock(now_us);
    tier = Open(files, clock);
    tier->Sweep();
    clock.Advance(kTtlUs - 1);
    EXPECT_TRUE(GetOne(*tier, KeyOf({})));
    if (now_us == 5) {
      clock.Advance(1);
      EXPECT_FALSE(GetOne(*tier, KeyOf({})));
    }
    tier = nullptr;  // before its clock
  }
}

TEST(DiskTier, ANewerBuildsFilesAreLeftAlone) {
  FaultyFiles files(1);
  ManualClock clock;
  {
    const auto file = files.Open("disk/segment-0000000000000001.kvik", true).value();
    SegmentHeader header = EncodeSegmentHeader(1);
    header[8] = std::byte{2};
    // With a right checksum, as the newer build would have written it.
    const uint32_t crc = Crc32c(std::span(header).first(60));
    std::memcpy(header.data() + 60, &crc, 4);
    ASSERT_TRUE(WriteAllAt(*file, 0, header));
  }
  EXPECT_EQ(DiskTier::Open(SmallOptions(), clock, files).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(files.FileCount(), 1U);
}

TEST(DiskTier, DeadlinesAreKept) {
  FaultyFiles files(1);
  ManualClock clock(100);
  const auto tier = Open(files, clock);
  const Object object = ObjectOf({}, kObject);
  EXPECT_EQ(tier->Put({&object, 1}, 100).front().error().code, ErrorCode::kTimeout);
  ASSERT_TRUE(tier->Put({&object, 1}, 101).front());
  EXPECT_EQ(tier->Get({&object.meta->key, 1}, 100).front().error().code, ErrorCode::kTimeout);
}

// Random use against the set of what was put and not removed, on a disk that fails in every way it
// can, with kills and power losses in between: never a wrong byte, never more bytes than the
// budget, never something back that was removed.
TEST(DiskTierProperty, NoFaultIsMoreThanAMiss) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    FaultyFiles files(seed);
    ManualClock clock;
    DiskTierOptions options = SmallOptions();
    options.catalog.eviction = rng.Below(2) == 0 ? EvictionKind::kLru : EvictionKind::kS3Fifo;
    options.sync = static_cast<DiskSync>(rng.Below(3));
    const bool faulty = seed % 3 != 0;
    auto tier = Open(files, clock, options);
    std::set<uint64_t> may_be_there;  // digests
    for (int step = 0; step < 400; ++step) {
      MadeObject made;
      made.conversation = rng.Below(4);
      made.chunk = static_cast<int>(rng.Below(12));
      made.profile = rng.Below(3);
      const ObjectKey key = KeyOf(made);
      switch (rng.Below(faulty ? 12 : 8)) {
        case 0:
        case 1:
        case 2:
        case 3: {
          const auto put = PutOne(*tier, ObjectOf(made, 200 + rng.Below(4000)));
          may_be_there.insert(key.Digest());  // a put whose sync failed may be there, too
          if (!faulty) {
            ASSERT_TRUE(put);
          }
          break;
        }
        case 4:
        case 5: {
          if (const auto got = GetOne(*tier, key)) {
            ASSERT_TRUE(IsIntact(key, got->bytes.bytes()));
            ASSERT_TRUE(may_be_there.count(key.Digest()) != 0);
            ASSERT_EQ(got->meta->key, key);
          }
          break;
        }
        case 6: {
          if (tier->Remove({&key, 1}, kNoDeadline)) {
            may_be_there.erase(key.Digest());
          }
          break;
        }
        case 7: {
          files.HealAll();
          tier = nullptr;
          tier = Open(files, clock, options);
          break;
        }
        case 8: {
          files.SetShortWrites(rng.Below(2) == 0);
          files.SetWriteErrors(rng.Below(4) == 0 ? 0.3 : 0);
          files.SetReadErrors(rng.Below(4) == 0 ? 0.3 : 0);
          files.SetReadFlips(rng.Below(4) == 0 ? 0.1 : 0);
          files.SetSyncErrors(rng.Below(4) == 0 ? 0.5 : 0);
          files.SetRemoveErrors(rng.Below(4) == 0 ? 0.5 : 0);
          files.SetCapacity(rng.Below(4) == 0 ? files.TotalBytes() + rng.Below(5000)
                                              : ~uint64_t{0});
          break;
        }
        case 9: {
          files.FlipStoredBit();
          break;
        }
        case 10: {
          files.HealAll();
          files.TearTail(rng.Below(3000));
          tier = nullptr;
          tier = Open(files, clock, options);
          break;
        }
        case 11: {
          files.HealAll();
          tier = nullptr;
          files.PowerLoss();
          tier = Open(files, clock, options);
          if (options.sync == DiskSync::kNever) {
            // Then removals may be lost, too.
            for (int c = 0; c < 4; ++c) {
              for (int k = 0; k < 12; ++k) {
                for (uint64_t p = 0; p < 3; ++p) {
                  may_be_there.insert(
                      KeyOf({.conversation = static_cast<uint64_t>(c), .chunk = k, .profile = p})
                          .Digest());
                }
              }
            }
          }
          break;
        }
      }
      ASSERT_LE(files.TotalBytes(), options.budget_bytes) << step;
      tier->CheckInvariant();
    }
  }
}

TEST(DiskTierThreads, ReadersAndWritersAtOnce) {
  FaultyFiles files(1);
  SystemClock clock;
  const auto tier = Open(files, clock);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Rng rng(11, t);
      for (int step = 0; step < 500; ++step) {
        MadeObject made;
        made.conversation = rng.Below(3);
        made.chunk = static_cast<int>(rng.Below(20));
        const ObjectKey key = KeyOf(made);
        switch (rng.Below(4)) {
          case 0:
          case 1:
            (void)PutOne(*tier, ObjectOf(made, 200 + rng.Below(3000)));
            break;
          case 2:
            if (const auto got = GetOne(*tier, key)) {
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
  EXPECT_EQ(tier->stats().corrupt, 0);
  tier->CheckInvariant();
}

}  // namespace
}  // namespace kvik::store
