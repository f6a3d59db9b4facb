// SPDX-License-Identifier: Apache-2.0
#include "store/disk_tier.h"

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/format.h"
#include "base/log.h"
#include "base/mutex.h"
#include "store/covered_blocks.h"
#include "store/disk_format.h"
#include "store/disk_scan.h"

namespace kvik::store {
namespace {

constexpr uint64_t kMinSegmentBytes = 4096;

std::string SegmentName(uint64_t id) { return Format("segment-%016" PRIx64 ".kvik", id); }

std::optional<uint64_t> ParseSegmentName(const std::string& name) {
  uint64_t id = 0;
  int length = 0;
  if (std::sscanf(name.c_str(), "segment-%16" SCNx64 ".kvik%n", &id, &length) != 1 ||
      name != SegmentName(id)) {
    return std::nullopt;
  }
  return id;
}

uint64_t ShareOf(uint64_t bytes, double share) {
  return static_cast<uint64_t>(static_cast<double>(bytes) * share);
}

struct Segment {
  uint64_t id = 0;
  std::shared_ptr<File> file;
  uint64_t end_bytes = kDiskAlignment;  // where the next record goes
  uint64_t file_bytes = 0;              // what it takes: also what failed writes left behind
  uint64_t synced_bytes = 0;
  uint64_t live_bytes = 0;
  std::set<Slot> live;
  bool unsynced_marks = false;  // records were marked dead since the last sync
};

struct Location {
  std::shared_ptr<Segment> segment;  // null: the slot is free
  RecordInfo info;
};

}  // namespace

// Writers, removers and compaction take `write` for as long as they touch files; the catalog and
// the locations are under `mutex`, which is never held during I/O. Order: write, mutex.
struct DiskTier::State {
  State(const DiskTierOptions& the_options, CatalogOptions catalog_options, const Clock& the_clock,
        FileSystem& the_files, std::shared_ptr<EventSink> events)
      : options(the_options),
        clock(the_clock),
        files(the_files),
        catalog(std::move(catalog_options)),
        covered(kv::BlockMedium::kDisk, std::move(events)) {
    stats.kind = TierKind::kDisk;
    stats.budget_bytes = options.budget_bytes;
  }

  const DiskTierOptions options;
  const Clock& clock;
  FileSystem& files;
  std::unique_ptr<FolderLock> folder_lock;
  DiskRecovery recovery;

  Mutex write;
  std::map<uint64_t, std::shared_ptr<Segment>> segments KVIK_GUARDED_BY(write);
  std::shared_ptr<Segment> active KVIK_GUARDED_BY(write);  // one of them, or null
  uint64_t next_id KVIK_GUARDED_BY(write) = 1;
  // Records that do not count but may say on disk that they do, because marking them failed: a
  // removal is not done before they are marked.
  std::vector<Location> unmarked KVIK_GUARDED_BY(write);
  bool folder_unsynced KVIK_GUARDED_BY(write) = false;  // files were removed since the last sync
  // Of all segments. Written under `write`.
  std::atomic<uint64_t> file_bytes = 0;

  mutable Mutex mutex;
  Catalog catalog KVIK_GUARDED_BY(mutex);
  CoveredBlocks covered KVIK_GUARDED_BY(mutex);
  std::vector<Location> locations KVIK_GUARDED_BY(mutex);  // by slot
  TierStats stats KVIK_GUARDED_BY(mutex);

  [[nodiscard]] std::string PathOf(uint64_t id) const {
    return options.folder + "/" + SegmentName(id);
  }
  void Count(int64_t TierStats::*counter, int64_t n = 1) KVIK_EXCLUDES(mutex) {
    MutexLock lock(mutex);
    stats.*counter += n;
  }

  void Hold(Slot slot, std::shared_ptr<Segment> segment, const RecordInfo& info)
      KVIK_REQUIRES(write, mutex) {
    if (slot >= locations.size()) {
      locations.resize(slot + 1);
    }
    segment->live.insert(slot);
    segment->live_bytes += info.record_bytes();
    locations[slot] = Location{std::move(segment), info};
  }
  void LetGo(Slot slot) KVIK_REQUIRES(write, mutex) {
    Location& location = locations[slot];
    location.segment->live.erase(slot);
    location.segment->live_bytes -= location.info.record_bytes();
    location = Location{};
  }
  // Out of the catalog; where it was.
  Location Forget(Slot slot) KVIK_REQUIRES(write, mutex) {
    Location location = locations[slot];
    LetGo(slot);
    covered.Remove(*catalog.meta(slot));
    catalog.Erase(slot);
    return location;
  }

  // In the file: it does not count any more. A failure is counted and remembered.
  void MarkDead(const Location& location) KVIK_REQUIRES(write) KVIK_EXCLUDES(mutex) {
    if (WriteAllAt(*location.segment->file, location.info.offset + kRecordStateOffset,
                   kRecordDead)) {
      location.segment->unsynced_marks = true;
    } else {
      Count(&TierStats::errors);
      unmarked.push_back(location);
    }
  }
  void MarkAllDead(const std::vector<Location>& dropped) KVIK_REQUIRES(write) KVIK_EXCLUDES(mutex) {
    for (const Location& location : dropped) {
      MarkDead(location);
    }
  }
  std::vector<Location> ForgetAll(const std::vector<Slot>& slots) KVIK_REQUIRES(write, mutex) {
    std::vector<Location> dropped;
    dropped.reserve(slots.size());
    for (const Slot slot : slots) {
      dropped.push_back(Forget(slot));
    }
    return dropped;
  }
  void DropExpired() KVIK_REQUIRES(write) KVIK_EXCLUDES(mutex) {
    std::vector<Location> dropped;
    {
      MutexLock lock(mutex);
      dropped = ForgetAll(catalog.Expire(clock.NowMicros()));
      stats.expirations += static_cast<int64_t>(dropped.size());
    }
    MarkAllDead(dropped);
  }

  // --- segments ---

  // After a failed sync nobody knows what is on the device: what was written since the last good
  // one does not count any more.
  void DistrustUnsynced(Segment& segment) KVIK_REQUIRES(write) KVIK_EXCLUDES(mutex) {
    std::vector<Location> dropped;
    {
      MutexLock lock(mutex);
      std::vector<Slot> unsynced;
      for (const Slot slot : segment.live) {
        if (locations[slot].info.offset >= segment.synced_bytes) {
          unsynced.push_back(slot);
        }
      }
      dropped = ForgetAll(unsynced);
      ++stats.errors;
      stats.corrupt += static_cast<int64_t>(dropped.size());
    }
    MarkAllDead(dropped);
  }
  Result<void> SyncSegment(Segment& segment) KVIK_REQUIRES(write) KVIK_EXCLUDES(mutex) {
    if (auto synced = segment.file->Sync(); !synced) {
      DistrustUnsynced(segment);
      if (active.get() == &segment) {
        active = nullptr;  // nothing more goes there
      }
      return synced;
    }
    segment.synced_bytes = segment.end_bytes;
    segment.unsynced_marks = false;
    return {};
  }

  void RemoveSegment(const std::shared_ptr<Segment>& segment) KVIK_REQUIRES(write)
      KVIK_EXCLUDES(mutex) {
    KVIK_CHECK(segment->live.empty());
    if (const auto removed = files.Remove(PathOf(segment->id));
        !removed && removed.error().code != ErrorCode::kNotFound) {
      // It still takes room, so it still counts; the next reclamation tries again.
      Count(&TierStats::errors);
      return;
    }
    folder_unsynced = true;
    unmarked.erase(
        std::remove_if(unmarked.begin(), unmarked.end(),
                       [&](const Location& location) { return location.segment == segment; }),
        unmarked.end());
    file_bytes -= segment->file_bytes;
    if (active == segment) {
      active = nullptr;
    }
    segments.erase(segment->id);
  }

  void FinishActive() KVIK_REQUIRES(write) KVIK_EXCLUDES(mutex) {
    if (active == nullptr) {
      return;
    }
    const std::shared_ptr<Segment> segment = std::exchange(active, nullptr);
    if (segment->end_bytes == kDiskAlignment) {
      RemoveSegment(segment);
      return;
    }
    if (options.sync != DiskSync::kNever && !SyncSegment(*segment)) {
      return;  // unfinished: the next opening verifies what is left of it
    }
    RecordInfo end;
    end.type = RecordType::kEnd;
    end.segment_id = segment->id;
    end.offset = segment->end_bytes;
    if (WriteAllAt(*segment->file, end.offset, EncodeRecordHeader(end))) {
      Grow(*segment, end.offset + kDiskAlignment);
    } else {
      GrowToFile(*segment);
      Count(&TierStats::errors);
    }
  }

  void Grow(Segment& segment, uint64_t bytes) KVIK_REQUIRES(write) {
    if (bytes > segment.file_bytes) {
      file_bytes += bytes - segment.file_bytes;
      segment.file_bytes = bytes;
    }
  }

  // After a failed write: whatever it left behind takes room.
  void GrowToFile(Segment& segment) KVIK_REQUIRES(write) {
    if (const auto size = segment.file->SizeBytes()) {
      Grow(segment, *size);
    }
  }

  Result<void> OpenActive() KVIK_REQUIRES(write) KVIK_EXCLUDES(mutex) {
    auto segment = std::make_shared<Segment>();
    segment->id = next_id;
    KVIK_ASSIGN(std::unique_ptr<File> file, files.Open(PathOf(segment->id), true));
    ++next_id;
    segment->file = std::move(file);
    segments[segment->id] = segment;
    if (const auto written = WriteAllAt(*segment->file, 0, EncodeSegmentHeader(segment->id));
        !written) {
      GrowToFile(*segment);
      RemoveSegment(segment);
      return written.error();
    }
    Grow(*segment, kDiskAlignment);
    if (options.sync != DiskSync::kNever && !files.SyncFolder(options.folder)) {
      Count(&TierStats::errors);
    }
    active = std::move(segment);
    return {};
  }

  // Where a record of this size goes: the active segment, a new one when it is full.
  Result<void> EnsureActive(uint64_t record_bytes) KVIK_REQUIRES(write) KVIK_EXCLUDES(mutex) {
    if (active != nullptr && active->end_bytes > kDiskAlignment &&
        active->end_bytes + record_bytes + kDiskAlignment > SegmentBytes()) {
      FinishActive();
    }
    if (active == nullptr) {
      return OpenActive();
    }
    return {};
  }
  [[nodiscard]] uint64_t SegmentBytes() const {
    return std::max(kMinSegmentBytes, std::min(options.segment_bytes, options.budget_bytes / 8));
  }

  // Appends to the active segment. On failure nothing is there but garbage behind its end, which
  // the next record overwrites.
  Result<RecordInfo> Append(const ObjectMeta& meta, std::span<const std::byte> payload)
      KVIK_REQUIRES(write) KVIK_EXCLUDES(mutex) {
    const std::vector<std::byte> description = EncodeMeta(meta);
    RecordInfo info;
    info.meta_bytes = static_cast<uint32_t>(description.size());
    info.meta_crc = Crc32c(description);
    info.payload_bytes = payload.size();
    info.payload_crc = Crc32c(payload, info.meta_crc);
    KVIK_TRY(EnsureActive(info.record_bytes()));
    info.segment_id = active->id;
    info.offset = active->end_bytes;
    const RecordHeader header = EncodeRecordHeader(info);
    std::vector<std::byte> front(header.begin(), header.end());
    front.insert(front.end(), description.begin(), description.end());
    auto written = WriteAllAt(*active->file, info.offset, front);
    if (written) {
      written = WriteAllAt(*active->file, info.payload_offset(), payload);
    }
    if (!written) {
      // No header may be left that claims bytes which are not there.
      const std::array<std::byte, kDiskAlignment> nothing = {};
      (void)WriteAllAt(*active->file, info.offset, nothing);
      GrowToFile(*active);
      return written.error();
    }
    active->end_bytes = info.offset + info.record_bytes();
    Grow(*active, active->end_bytes);
    return info;
  }

  // --- room ---

  [[nodiscard]] uint64_t LiveLimit() const {
    return ShareOf(options.budget_bytes, options.live_share);
  }

  // Evicts until objects that count leave room for `record_bytes` more. False: they cannot.
  bool EvictFor(uint64_t record_bytes) KVIK_REQUIRES(write) KVIK_EXCLUDES(mutex) {
    std::vector<Location> dropped;
    bool fits = true;
    {
      MutexLock lock(mutex);
      while (catalog.charged_bytes() + record_bytes > LiveLimit()) {
        const auto victim = catalog.Victim([](Slot) { return true; });
        if (!victim) {
          fits = false;
          break;
        }
        dropped.push_back(Forget(*victim));
        ++stats.evictions;
      }
    }
    MarkAllDead(dropped);
    return fits;
  }

  // Takes back the emptiest finished segment. False: there is none.
  bool ReclaimOne() KVIK_REQUIRES(write) KVIK_EXCLUDES(mutex) {
    std::shared_ptr<Segment> emptiest;
    for (const auto& [id, segment] : segments) {
      if (segment != active &&
          (emptiest == nullptr || segment->live_bytes < emptiest->live_bytes)) {
        emptiest = segment;
      }
    }
    if (emptiest == nullptr) {
      if (active == nullptr) {
        return false;
      }
      emptiest = active;
      FinishActive();
      return segments.count(emptiest->id) != 0 ? ReclaimOne() : true;
    }
    // What counts is moved. When it is most of the segment, moving all of it would cost more than
    // it gains: then only what has been used since it came is worth it, and of a segment that is
    // full nothing is.
    const bool move_all = emptiest->live_bytes * 2 <= emptiest->file_bytes;
    const bool move_used = emptiest->live_bytes * 10 <= emptiest->file_bytes * 9;
    const std::vector<Slot> live(emptiest->live.begin(), emptiest->live.end());
    std::vector<Location> left_behind;
    for (const Slot slot : live) {
      std::shared_ptr<const ObjectMeta> meta;
      Location from;
      bool move = false;
      {
        MutexLock lock(mutex);
        if (emptiest->live.count(slot) == 0) {
          continue;  // dropped meanwhile, with what a failed sync took
        }
        meta = catalog.meta(slot);
        from = locations[slot];
        left_behind.push_back(from);
        move = move_all || (move_used && catalog.used_again(slot));
      }
      const bool moved = move && Move(slot, *meta, from);
      if (!moved) {
        MutexLock lock(mutex);
        if (emptiest->live.count(slot) != 0) {
          (void)Forget(slot);
          ++stats.evictions;
        }
      }
    }
    const size_t before = segments.size();
    RemoveSegment(emptiest);
    if (segments.size() == before) {
      MarkAllDead(left_behind);
      return false;
    }
    return true;
  }

  bool Move(Slot slot, const ObjectMeta& meta, const Location& from) KVIK_REQUIRES(write)
      KVIK_EXCLUDES(mutex) {
    auto bytes = ReadRecord(from);
    if (!bytes) {
      Count(bytes.error().code == ErrorCode::kCorrupt ? &TierStats::corrupt : &TierStats::errors);
      return false;
    }
    const auto info = Append(meta, bytes->bytes());
    if (!info) {
      Count(&TierStats::errors);
      return false;
    }
    MutexLock lock(mutex);
    if (from.segment->live.count(slot) == 0) {
      return true;  // a failed sync during the append took it: the copy is found by nobody
    }
    LetGo(slot);
    Hold(slot, active, *info);
    return true;
  }

  // Room for a record within the budget of files. One segment's worth is kept for moving.
  Result<void> MakeRoom(uint64_t record_bytes) KVIK_REQUIRES(write) KVIK_EXCLUDES(mutex) {
    const bool fits = EvictFor(record_bytes);
    const uint64_t limit = options.budget_bytes - SegmentBytes();
    size_t tries = 2 * segments.size() + 2;
    while (fits && file_bytes + record_bytes + 2 * kDiskAlignment > limit) {
      if (tries-- == 0 || !ReclaimOne()) {
        return Err(ErrorCode::kExhausted, "the disk tier is full");
      }
    }
    if (!fits) {
      return Err(ErrorCode::kExhausted, "the disk tier has no room for %llu bytes",
                 static_cast<unsigned long long>(record_bytes));
    }
    return {};
  }

  Result<void> PutOne(const Object& object) KVIK_EXCLUDES(write, mutex) {
    KVIK_TRY(object.meta->Check());
    RecordInfo shape;
    shape.meta_bytes =
        static_cast<uint32_t>(128 + (object.meta->blocks.size() - 1) * sizeof(kv::BlockHash));
    shape.payload_bytes = object.bytes.size_bytes();
    const uint64_t record_bytes = shape.record_bytes();
    MutexLock write_lock(write);
    DropExpired();
    std::vector<Location> dropped;
    {
      MutexLock lock(mutex);
      if (catalog.Find(object.meta->key)) {
        ++stats.duplicates;
        return {};
      }
      if (object.bytes.size_bytes() > kMaxObjectBytes) {
        return Err(ErrorCode::kInvalidInput, "an object has at most %llu bytes",
                   static_cast<unsigned long long>(kMaxObjectBytes));
      }
      if (auto admitted = catalog.Admits(object.meta->key, record_bytes); !admitted) {
        ++stats.rejected;
        return admitted;
      }
      const auto in_the_way =
          catalog.InTheWay(object.meta->key, record_bytes, [](Slot) { return true; });
      KVIK_CHECK(in_the_way, "nothing on disk is pinned");
      dropped = ForgetAll(*in_the_way);
      stats.evictions += static_cast<int64_t>(dropped.size());
    }
    MarkAllDead(dropped);
    if (auto room = MakeRoom(record_bytes); !room) {
      Count(&TierStats::rejected);
      return room;
    }
    const auto info = Append(*object.meta, object.bytes.bytes());
    if (!info) {
      MutexLock lock(mutex);
      ++stats.errors;
      ++stats.rejected;
      return info.error();
    }
    if (options.sync == DiskSync::kPut) {
      const std::shared_ptr<Segment> segment = active;
      if (auto synced = SyncSegment(*segment); !synced) {
        MarkDead(Location{segment, *info});
        Count(&TierStats::rejected);
        return synced;
      }
    }
    MutexLock lock(mutex);
    const Slot slot =
        catalog.Insert(object.meta, object.bytes.size_bytes(), record_bytes, clock.NowMicros());
    Hold(slot, active, *info);
    covered.Add(*object.meta);
    ++stats.puts;
    stats.written_bytes += object.bytes.size_bytes();
    return {};
  }

  // Reads and verifies; kCorrupt, kUnavailable, kExhausted.
  static Result<Buffer> ReadRecord(const Location& location) {
    KVIK_ASSIGN(WritableBuffer bytes, WritableBuffer::Allocate(location.info.payload_bytes));
    KVIK_TRY(ReadAllAt(*location.segment->file, location.info.payload_offset(), bytes.bytes()));
    const uint32_t crc = Crc32c(bytes.bytes(), location.info.meta_crc);
    if (crc != location.info.payload_crc) {
      return Err(ErrorCode::kCorrupt, "the bytes of an object on disk fail their checksum");
    }
    return std::move(bytes).Freeze();
  }

  // What turned out to be damaged is dropped, if it is still where it was.
  void DropCorrupt(const ObjectKey& key, const Location& location) KVIK_EXCLUDES(write, mutex) {
    MutexLock write_lock(write);
    std::vector<Location> dropped;
    {
      MutexLock lock(mutex);
      ++stats.corrupt;
      const auto slot = catalog.Find(key);
      if (slot && locations[*slot].segment == location.segment &&
          locations[*slot].info.offset == location.info.offset) {
        dropped.push_back(Forget(*slot));
      }
    }
    MarkAllDead(dropped);
  }

  Result<Object> GetOne(const ObjectKey& key, int64_t deadline_us) KVIK_EXCLUDES(write, mutex) {
    Location location;
    Object object;
    {
      MutexLock lock(mutex);
      const int64_t now_us = clock.NowMicros();
      if (now_us >= deadline_us) {
        ++stats.timeouts;
        return Err(ErrorCode::kTimeout, "the deadline passed before the disk was read");
      }
      const auto slot = catalog.Find(key);
      if (!slot || catalog.expired(*slot, now_us)) {
        ++stats.misses;
        return Err(ErrorCode::kNotFound, "the object is not on disk");
      }
      catalog.Touch(*slot);
      object.meta = catalog.meta(*slot);
      location = locations[*slot];
    }
    auto bytes = ReadRecord(location);
    if (!bytes) {
      if (bytes.error().code == ErrorCode::kCorrupt) {
        DropCorrupt(key, location);
      } else {
        Count(&TierStats::errors);
      }
      Count(&TierStats::misses);
      return bytes.error();
    }
    object.bytes = std::move(*bytes);
    MutexLock lock(mutex);
    ++stats.hits;
    stats.read_bytes += object.bytes.size_bytes();
    return object;
  }

  Result<int64_t> RemoveSlots(const std::vector<Location>& dropped) KVIK_REQUIRES(write)
      KVIK_EXCLUDES(mutex) {
    Count(&TierStats::removals, static_cast<int64_t>(dropped.size()));
    MarkAllDead(dropped);
    // Whatever else of these objects may be on the disk, evicted long ago, has to go as well.
    MarkAllDead(std::exchange(unmarked, {}));
    if (!unmarked.empty()) {
      return Err(ErrorCode::kUnavailable, "%zu removals did not reach the disk", unmarked.size());
    }
    if (options.sync != DiskSync::kNever) {
      const auto all = segments;
      for (const auto& [id, segment] : all) {
        if (segment->unsynced_marks) {
          KVIK_TRY(SyncSegment(*segment));
        }
      }
      if (folder_unsynced) {
        KVIK_TRY(files.SyncFolder(options.folder));
        folder_unsynced = false;
      }
    }
    return static_cast<int64_t>(dropped.size());
  }

  // --- opening ---

  Result<void> Recover() KVIK_EXCLUDES(write, mutex) {
    MutexLock write_lock(write);
    KVIK_ASSIGN(std::vector<std::string> names, files.List(options.folder));
    std::sort(names.begin(), names.end());
    folder_unsynced = true;
    std::vector<Location> unwanted;
    std::map<uint64_t, std::unique_ptr<File>> found;
    uint64_t found_bytes = 0;
    for (const std::string& name : names) {
      if (const auto id = ParseSegmentName(name)) {
        next_id = std::max(next_id, *id + 1);
        KVIK_ASSIGN(std::unique_ptr<File> file, files.Open(options.folder + "/" + name, false));
        KVIK_ASSIGN(const uint64_t bytes, file->SizeBytes());
        found_bytes += bytes;
        found.emplace(*id, std::move(file));
      }
    }
    for (auto& [found_id, file] : found) {
      const uint64_t id = found_id;
      auto scanned = ScanSegment(*file, id);
      if (!scanned) {
        return scanned.error().Wrap(SegmentName(id));
      }
      recovery.segments += 1;
      recovery.verified += scanned->verified;
      recovery.torn_segments += scanned->torn ? 1 : 0;
      recovery.corrupt += scanned->corrupt;
      recovery.dropped_bytes += scanned->dropped_bytes;
      auto segment = std::make_shared<Segment>();
      segment->id = id;
      segment->file = std::move(file);
      segment->end_bytes = scanned->file_bytes;
      segment->file_bytes = scanned->file_bytes;
      segment->synced_bytes = scanned->file_bytes;
      segment->unsynced_marks = true;  // nobody knows what the last process left unsynced
      file_bytes += scanned->file_bytes;
      segments[id] = segment;
      if (options.on_progress) {
        options.on_progress(file_bytes, found_bytes);
      }
      MutexLock lock(mutex);
      stats.corrupt += scanned->corrupt;
      for (ScannedRecord& record : scanned->records) {
        // Two of a kind: a move was cut short between the copy and the removal. Limits may have
        // become tighter, too.
        const uint64_t record_bytes = record.info.record_bytes();
        if (catalog.Find(record.meta->key) || !catalog.Admits(record.meta->key, record_bytes)) {
          unwanted.push_back({segment, record.info});
          continue;
        }
        const auto in_the_way =
            catalog.InTheWay(record.meta->key, record_bytes, [](Slot) { return true; });
        KVIK_CHECK(in_the_way, "nothing on disk is pinned");
        for (const Slot victim : *in_the_way) {
          unwanted.push_back(Forget(victim));
        }
        const Slot slot =
            catalog.Insert(record.meta, record.info.payload_bytes, record_bytes, clock.NowMicros());
        Hold(slot, segment, record.info);
        covered.Add(*record.meta);
      }
    }
    MarkAllDead(unwanted);
    for (auto next = segments.begin(); next != segments.end();) {
      const std::shared_ptr<Segment> segment = (next++)->second;
      if (segment->live.empty()) {
        RemoveSegment(segment);
      }
    }
    // The budget may be smaller than it was.
    if (const auto room = MakeRoom(0); !room) {
      LogWarning("%s: %s", options.folder.c_str(), room.error().message.c_str());
    }
    MutexLock lock(mutex);
    recovery.objects = static_cast<int64_t>(catalog.size());
    return {};
  }
};

Result<std::unique_ptr<DiskTier>> DiskTier::Open(const DiskTierOptions& options, const Clock& clock,
                                                 FileSystem& files,
                                                 std::shared_ptr<EventSink> events) {
  if (options.folder.empty()) {
    return Err(ErrorCode::kInvalidInput, "the disk tier needs a folder");
  }
  if (options.budget_bytes < 8 * kMinSegmentBytes) {
    return Err(ErrorCode::kInvalidInput, "the disk tier needs at least %llu bytes",
               static_cast<unsigned long long>(8 * kMinSegmentBytes));
  }
  if (!(options.live_share > 0 && options.live_share <= 0.8)) {
    return Err(ErrorCode::kInvalidInput, "live_share of the disk tier lies in (0, 0.8]");
  }
  CatalogOptions catalog = options.catalog;
  catalog.budget_bytes = ShareOf(options.budget_bytes, options.live_share);
  if (!(catalog.max_object_share > 0 && catalog.max_object_share <= 0.5 &&
        catalog.max_encodings >= 1)) {
    return Err(ErrorCode::kInvalidInput,
               "disk: max_object_share lies in (0, 0.5], max_encodings is at least 1");
  }
  KVIK_TRY(files.MakeFolder(options.folder));
  auto state =
      std::make_unique<State>(options, std::move(catalog), clock, files, std::move(events));
  KVIK_ASSIGN(state->folder_lock, files.LockFolder(options.folder));
  KVIK_TRY(state->Recover());
  return std::unique_ptr<DiskTier>(new DiskTier(std::move(state)));
}

DiskTier::DiskTier(std::unique_ptr<State> state) : state_(std::move(state)) {}

DiskTier::~DiskTier() {
  MutexLock lock(state_->write);
  state_->FinishActive();
}

Result<std::vector<FoundObject>> DiskTier::Lookup(const BlockQuery& query,
                                                  int64_t /*deadline_us*/) {
  MutexLock lock(state_->mutex);
  ++state_->stats.lookups;
  return state_->catalog.Lookup(query, TierKind::kDisk, state_->clock.NowMicros());
}

Result<std::vector<bool>> DiskTier::Exists(std::span<const ObjectKey> keys,
                                           int64_t /*deadline_us*/) {
  std::vector<bool> exists(keys.size());
  MutexLock lock(state_->mutex);
  const int64_t now_us = state_->clock.NowMicros();
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto slot = state_->catalog.Find(keys[i]);
    exists[i] = slot && !state_->catalog.expired(*slot, now_us);
  }
  return exists;
}

std::vector<Result<Object>> DiskTier::Get(std::span<const ObjectKey> keys, int64_t deadline_us) {
  std::vector<Result<Object>> objects;
  objects.reserve(keys.size());
  for (const ObjectKey& key : keys) {
    objects.push_back(state_->GetOne(key, deadline_us));
  }
  return objects;
}

std::vector<Result<void>> DiskTier::Put(std::span<const Object> objects, int64_t deadline_us) {
  std::vector<Result<void>> results;
  results.reserve(objects.size());
  for (const Object& object : objects) {
    if (state_->clock.NowMicros() >= deadline_us) {
      state_->Count(&TierStats::timeouts);
      results.emplace_back(
          Err(ErrorCode::kTimeout, "the deadline passed before the disk was written"));
    } else {
      results.push_back(state_->PutOne(object));
    }
  }
  return results;
}

Result<int64_t> DiskTier::Remove(std::span<const ObjectKey> keys, int64_t /*deadline_us*/) {
  MutexLock write_lock(state_->write);
  state_->DropExpired();
  std::vector<Location> dropped;
  {
    MutexLock lock(state_->mutex);
    for (const ObjectKey& key : keys) {
      if (const auto slot = state_->catalog.Find(key)) {
        dropped.push_back(state_->Forget(*slot));
      }
    }
  }
  return state_->RemoveSlots(dropped);
}

Result<int64_t> DiskTier::RemoveMatching(const RemoveFilter& filter, int64_t /*deadline_us*/) {
  MutexLock write_lock(state_->write);
  state_->DropExpired();
  std::vector<Location> dropped;
  {
    MutexLock lock(state_->mutex);
    dropped = state_->ForgetAll(state_->catalog.Match(filter));
  }
  return state_->RemoveSlots(dropped);
}

TierStats DiskTier::stats() const {
  MutexLock lock(state_->mutex);
  TierStats stats = state_->stats;
  stats.objects = static_cast<int64_t>(state_->catalog.size());
  stats.used_bytes = state_->file_bytes;
  return stats;
}

void DiskTier::Sweep() {
  MutexLock lock(state_->write);
  state_->DropExpired();
}

const DiskRecovery& DiskTier::recovery() const { return state_->recovery; }

void DiskTier::CheckInvariant() const {
  MutexLock write_lock(state_->write);
  MutexLock lock(state_->mutex);
  state_->catalog.CheckInvariant();
  uint64_t live_bytes = 0;
  uint64_t file_bytes = 0;
  size_t live = 0;
  for (const auto& [id, segment] : state_->segments) {
    uint64_t of_segment = 0;
    for (const Slot slot : segment->live) {
      KVIK_CHECK(state_->locations[slot].segment == segment);
      KVIK_CHECK(state_->locations[slot].info.record_bytes() == state_->catalog.charge_bytes(slot));
      of_segment += state_->catalog.charge_bytes(slot);
    }
    KVIK_CHECK(of_segment == segment->live_bytes);
    live += segment->live.size();
    live_bytes += of_segment;
    file_bytes += segment->file_bytes;
    const auto size = segment->file->SizeBytes();
    KVIK_CHECK(!size || *size <= segment->file_bytes, "a file is larger than what it counts for");
  }
  KVIK_CHECK(live == state_->catalog.size() && live_bytes == state_->catalog.charged_bytes());
  KVIK_CHECK(file_bytes == state_->file_bytes && file_bytes <= state_->options.budget_bytes);
}

}  // namespace kvik::store
