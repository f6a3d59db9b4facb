// SPDX-License-Identifier: Apache-2.0
// store/disk_tier.h: objects in append-only files of one folder, within a budget of bytes.
//
// A segment file is a header and then records: header, description, bytes, each under a CRC32C.
// Nothing that was written is changed, but for one word per record that says whether it still
// counts. Opening scans the record headers; what is torn or damaged is left out, and segments that
// were not finished (a crash, a kill) have every byte of theirs verified. Bytes are verified at
// every read: damage is a miss and a counter, never data.
//
// Room is made by evicting objects, then by taking whole segments back: what still counts in the
// emptiest one is appended to the current one, and the file is removed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "store/catalog.h"
#include "store/events.h"
#include "store/file_system.h"
#include "store/tier.h"

namespace kvik::store {

// When written bytes are forced to the device. What is lost to a power failure is a miss.
enum class DiskSync {
  kNever,
  kSegment,  // when a segment is full and at the end
  kPut,      // before a Put returns
};

struct DiskTierOptions {
  std::string folder;                           // made when missing; of this tier alone
  uint64_t budget_bytes = uint64_t{16} << 30;   // of files
  uint64_t segment_bytes = uint64_t{64} << 20;  // at most an eighth of the budget is used
  // Of the budget, that objects which count may take: the rest is what compaction works with.
  double live_share = 0.8;
  DiskSync sync = DiskSync::kSegment;
  CatalogOptions catalog = {};  // budget_bytes of it is taken from above
  // While it is opened, after each file: bytes of those that were looked at, and of all. May be
  // empty.
  std::function<void(uint64_t done, uint64_t total)> on_progress = {};
};

// What opening found.
struct DiskRecovery {
  int64_t segments = 0;
  int64_t objects = 0;
  int64_t verified = 0;        // objects whose bytes were read and checked
  int64_t torn_segments = 0;   // with a tail that was cut short
  int64_t corrupt = 0;         // records or segments left out for a failed check
  uint64_t dropped_bytes = 0;  // of torn tails and damaged parts
};

class DiskTier final : public Tier {
 public:
  // `clock` and `files` outlive the tier, `events` may be null. kInvalidInput names the option;
  // kUnavailable when another process uses the folder or it cannot be read.
  static Result<std::unique_ptr<DiskTier>> Open(const DiskTierOptions& options, const Clock& clock,
                                                FileSystem& files,
                                                std::shared_ptr<EventSink> events = nullptr);
  // Finishes the current segment.
  ~DiskTier() override;

  [[nodiscard]] TierKind kind() const override { return TierKind::kDisk; }
  Result<std::vector<FoundObject>> Lookup(const BlockQuery& query, int64_t deadline_us) override;
  Result<std::vector<bool>> Exists(std::span<const ObjectKey> keys, int64_t deadline_us) override;
  std::vector<Result<Object>> Get(std::span<const ObjectKey> keys, int64_t deadline_us) override;
  std::vector<Result<void>> Put(std::span<const Object> objects, int64_t deadline_us) override;
  // The objects are marked on the device before this returns. kUnavailable when that failed: they
  // are gone from here, but a restart may bring them back.
  Result<int64_t> Remove(std::span<const ObjectKey> keys, int64_t deadline_us) override;
  Result<int64_t> RemoveMatching(const RemoveFilter& filter, int64_t deadline_us) override;
  [[nodiscard]] TierStats stats() const override;

  // Drops what has expired.
  void Sweep();
  [[nodiscard]] const DiskRecovery& recovery() const;
  // Sums and segments agree with the catalog and the files. Aborts on a violation.
  void CheckInvariant() const;

 private:
  struct State;
  explicit DiskTier(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvik::store
