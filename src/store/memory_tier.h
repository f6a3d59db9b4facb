// SPDX-License-Identifier: Apache-2.0
// store/memory_tier.h: objects in this process's memory, within a budget of bytes.
//
// Reads share the stored bytes, nothing is copied. What counts against the budget is every byte
// that lives because of this tier: resident objects, puts that have begun, and objects that were
// evicted while a reader still holds them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/types.h"
#include "store/catalog.h"
#include "store/covered_blocks.h"
#include "store/events.h"
#include "store/tier.h"

namespace kvik::store {

struct MemoryTierOptions {
  uint64_t budget_bytes = uint64_t{1} << 30;
  // Shares of the budget: a put that would pass the high one evicts down to the low one.
  double high_watermark = 0.98;
  double low_watermark = 0.97;
  // budget_bytes of it is taken from above.
  CatalogOptions catalog = {};
};

// What an object costs beyond its bytes, of the budget: index, hashes of its blocks.
constexpr uint64_t kObjectOverheadBytes = 512;

// An object being written. Move-only; destroying it aborts the put. Thread-compatible.
class PendingPut {
 public:
  PendingPut(PendingPut&& other) noexcept = default;
  PendingPut& operator=(PendingPut&& other) noexcept = default;
  PendingPut(const PendingPut&) = delete;
  PendingPut& operator=(const PendingPut&) = delete;
  ~PendingPut() = default;

  [[nodiscard]] const ObjectMeta& meta() const { return *meta_; }
  // To be filled in before Commit.
  [[nodiscard]] std::span<std::byte> bytes() { return buffer_.bytes(); }
  [[nodiscard]] int64_t deadline_us() const { return deadline_us_; }

 private:
  friend class MemoryTier;
  friend class Store;
  PendingPut() = default;
  std::shared_ptr<const ObjectMeta> meta_;
  WritableBuffer buffer_;
  int64_t deadline_us_ = kNoDeadline;
  bool write_back_ = true;
};

class MemoryTier final : public Tier {
 public:
  // `clock` outlives the tier, `events` may be null. kInvalidInput names the option.
  static Result<std::unique_ptr<MemoryTier>> Create(const MemoryTierOptions& options,
                                                    const Clock& clock,
                                                    std::shared_ptr<EventSink> events = nullptr);
  ~MemoryTier() override;

  [[nodiscard]] TierKind kind() const override { return TierKind::kMemory; }
  Result<std::vector<FoundObject>> Lookup(const BlockQuery& query, int64_t deadline_us) override;
  Result<std::vector<bool>> Exists(std::span<const ObjectKey> keys, int64_t deadline_us) override;
  std::vector<Result<Object>> Get(std::span<const ObjectKey> keys, int64_t deadline_us) override;
  // Shares the bytes.
  std::vector<Result<void>> Put(std::span<const Object> objects, int64_t deadline_us) override;
  Result<int64_t> Remove(std::span<const ObjectKey> keys, int64_t deadline_us) override;
  Result<int64_t> RemoveMatching(const RemoveFilter& filter, int64_t deadline_us) override;
  [[nodiscard]] TierStats stats() const override;

  // Room for an object, evicting what it takes; nullopt when the object is there.
  // kExhausted, kInvalidInput.
  Result<std::optional<PendingPut>> BeginPut(const ObjectMeta& meta, uint64_t size_bytes,
                                             int64_t deadline_us);
  // As Put of one object.
  Result<void> Share(const Object& object);
  // Makes it visible and returns it. kTimeout after its deadline; then, as on any error, it is
  // gone. When another writer was faster the object is theirs.
  Result<Object> Commit(PendingPut put);

  // Keeps an object: kHard against eviction (kExhausted beyond max_pinned_share), kSoft until
  // nothing else is left. Ends after `ttl_us`, 0: with Unpin. Removal and the object's own TTL are
  // stronger. kNotFound.
  Result<void> Pin(const ObjectKey& key, PinKind kind, int64_t ttl_us);
  void Unpin(const ObjectKey& key);

  // Drops what has expired.
  void Sweep();
  // Bytes of live buffers and their overhead: what stats() calls used.
  [[nodiscard]] uint64_t used_bytes() const;
  // Aborts on a violation. REQUIRES: no put is pending and no reader holds bytes, when `idle`.
  void CheckInvariant(bool idle) const;

 private:
  MemoryTier(const MemoryTierOptions& options, const Clock& clock,
             std::shared_ptr<EventSink> events);
  Result<void> MakeRoom(const ObjectKey& key, uint64_t size_bytes) KVIK_REQUIRES(mutex_);
  void Insert(std::shared_ptr<const ObjectMeta> meta, Buffer bytes) KVIK_REQUIRES(mutex_);
  void Erase(Slot slot) KVIK_REQUIRES(mutex_);
  void DropExpired() KVIK_REQUIRES(mutex_);
  int64_t EraseAll(const std::vector<Slot>& slots) KVIK_REQUIRES(mutex_);

  const MemoryTierOptions options_;
  const Clock& clock_;
  const std::shared_ptr<MemoryAccount> account_;
  mutable Mutex mutex_;
  Catalog catalog_ KVIK_GUARDED_BY(mutex_);
  CoveredBlocks covered_ KVIK_GUARDED_BY(mutex_);
  std::vector<Buffer> buffers_ KVIK_GUARDED_BY(mutex_);  // by slot
  TierStats stats_ KVIK_GUARDED_BY(mutex_);
};

}  // namespace kvik::store
