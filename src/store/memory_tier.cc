// SPDX-License-Identifier: Apache-2.0
#include "store/memory_tier.h"

#include <utility>

#include "base/check.h"

namespace kvik::store {
namespace {

CatalogOptions CatalogOptionsOf(const MemoryTierOptions& options) {
  CatalogOptions catalog = options.catalog;
  catalog.budget_bytes = options.budget_bytes;
  return catalog;
}

uint64_t ShareOf(uint64_t bytes, double share) {
  return static_cast<uint64_t>(static_cast<double>(bytes) * share);
}

}  // namespace

Result<std::unique_ptr<MemoryTier>> MemoryTier::Create(const MemoryTierOptions& options,
                                                       const Clock& clock,
                                                       std::shared_ptr<EventSink> events) {
  if (!(options.low_watermark > 0 && options.low_watermark <= options.high_watermark &&
        options.high_watermark <= 1)) {
    return Err(ErrorCode::kInvalidInput, "watermarks of memory: 0 < low <= high <= 1");
  }
  if (const auto& catalog = options.catalog;
      !(catalog.max_object_share > 0 && catalog.max_object_share <= options.low_watermark &&
        catalog.max_pinned_share >= 0 && catalog.max_pinned_share < options.low_watermark &&
        catalog.max_encodings >= 1)) {
    return Err(ErrorCode::kInvalidInput,
               "memory: max_object_share and max_pinned_share lie below the low watermark, "
               "max_encodings is at least 1");
  }
  return std::unique_ptr<MemoryTier>(new MemoryTier(options, clock, std::move(events)));
}

MemoryTier::MemoryTier(const MemoryTierOptions& options, const Clock& clock,
                       std::shared_ptr<EventSink> events)
    : options_(options),
      clock_(clock),
      account_(std::make_shared<MemoryAccount>()),
      catalog_(CatalogOptionsOf(options)),
      covered_(kv::BlockMedium::kMemory, std::move(events)) {
  stats_.kind = TierKind::kMemory;
  stats_.budget_bytes = options.budget_bytes;
}

MemoryTier::~MemoryTier() = default;

void MemoryTier::Erase(Slot slot) {
  covered_.Remove(*catalog_.meta(slot));
  account_->Subtract(kObjectOverheadBytes);
  buffers_[slot] = Buffer();
  catalog_.Erase(slot);
}

int64_t MemoryTier::EraseAll(const std::vector<Slot>& slots) {
  for (const Slot slot : slots) {
    Erase(slot);
  }
  return static_cast<int64_t>(slots.size());
}

void MemoryTier::DropExpired() {
  stats_.expirations += EraseAll(catalog_.Expire(clock_.NowMicros()));
}

Result<void> MemoryTier::MakeRoom(const ObjectKey& key, uint64_t size_bytes) {
  const uint64_t charge_bytes = size_bytes + kObjectOverheadBytes;
  KVIK_TRY(catalog_.Admits(key, charge_bytes));
  DropExpired();
  // Evicting what a reader holds would free nothing.
  const MayGo nobody_holds = [this](Slot slot)
                                 KVIK_REQUIRES(mutex_) { return buffers_[slot].unique(); };
  const auto in_the_way = catalog_.InTheWay(key, charge_bytes, nobody_holds);
  if (!in_the_way) {
    return Err(ErrorCode::kExhausted,
               "what is pinned or being read leaves its tenant or chunk no room");
  }
  stats_.evictions += EraseAll(*in_the_way);
  const uint64_t high_bytes = ShareOf(options_.budget_bytes, options_.high_watermark);
  if (account_->TryAdd(charge_bytes, high_bytes)) {
    return {};
  }
  const uint64_t low_bytes = ShareOf(options_.budget_bytes, options_.low_watermark);
  while (account_->used_bytes() + charge_bytes > low_bytes) {
    const std::optional<Slot> victim = catalog_.Victim(nobody_holds);
    if (!victim) {
      break;
    }
    Erase(*victim);
    ++stats_.evictions;
  }
  if (!account_->TryAdd(charge_bytes, options_.budget_bytes)) {
    return Err(ErrorCode::kExhausted, "memory is full of what is pinned, being read or written");
  }
  return {};
}

void MemoryTier::Insert(std::shared_ptr<const ObjectMeta> meta, Buffer bytes) {
  covered_.Add(*meta);
  const uint64_t size_bytes = bytes.size_bytes();
  const Slot slot = catalog_.Insert(std::move(meta), size_bytes, size_bytes + kObjectOverheadBytes,
                                    clock_.NowMicros());
  if (slot >= buffers_.size()) {
    buffers_.resize(slot + 1);
  }
  buffers_[slot] = std::move(bytes);
  ++stats_.puts;
  stats_.written_bytes += size_bytes;
}

Result<std::vector<FoundObject>> MemoryTier::Lookup(const BlockQuery& query,
                                                    int64_t /*deadline_us*/) {
  MutexLock lock(mutex_);
  ++stats_.lookups;
  return catalog_.Lookup(query, TierKind::kMemory, clock_.NowMicros());
}

Result<std::vector<bool>> MemoryTier::Exists(std::span<const ObjectKey> keys,
                                             int64_t /*deadline_us*/) {
  std::vector<bool> exists(keys.size());
  MutexLock lock(mutex_);
  const int64_t now_us = clock_.NowMicros();
  for (size_t i = 0; i < keys.size(); ++i) {
    const std::optional<Slot> slot = catalog_.Find(keys[i]);
    exists[i] = slot && !catalog_.expired(*slot, now_us);
  }
  return exists;
}

std::vector<Result<Object>> MemoryTier::Get(std::span<const ObjectKey> keys,
                                            int64_t /*deadline_us*/) {
  std::vector<Result<Object>> objects;
  objects.reserve(keys.size());
  MutexLock lock(mutex_);
  const int64_t now_us = clock_.NowMicros();
  for (const ObjectKey& key : keys) {
    const std::optional<Slot> slot = catalog_.Find(key);
    if (!slot || catalog_.expired(*slot, now_us)) {
      ++stats_.misses;
      objects.emplace_back(Err(ErrorCode::kNotFound, "the object is not in memory"));
      continue;
    }
    catalog_.Touch(*slot);
    ++stats_.hits;
    stats_.read_bytes += buffers_[*slot].size_bytes();
    objects.emplace_back(Object{catalog_.meta(*slot), buffers_[*slot]});
  }
  return objects;
}

std::vector<Result<void>> MemoryTier::Put(std::span<const Object> objects,
                                          int64_t /*deadline_us*/) {
  std::vector<Result<void>> results;
  results.reserve(objects.size());
  for (const Object& object : objects) {
    results.push_back(Share(object));
  }
  return results;
}

Result<void> MemoryTier::Share(const Object& object) {
  KVIK_TRY(object.meta->Check());
  MutexLock lock(mutex_);
  DropExpired();
  if (catalog_.Find(object.meta->key)) {
    ++stats_.duplicates;
    return {};
  }
  if (auto room = MakeRoom(object.meta->key, object.bytes.size_bytes()); !room) {
    ++stats_.rejected;
    return room;
  }
  Insert(object.meta, object.bytes.ChargedTo(account_));
  return {};
}

Result<std::optional<PendingPut>> MemoryTier::BeginPut(const ObjectMeta& meta, uint64_t size_bytes,
                                                       int64_t deadline_us) {
  KVIK_TRY(meta.Check());
  {
    MutexLock lock(mutex_);
    DropExpired();
    if (catalog_.Find(meta.key)) {
      ++stats_.duplicates;
      return std::optional<PendingPut>();
    }
    if (auto room = MakeRoom(meta.key, size_bytes); !room) {
      ++stats_.rejected;
      return room.error();
    }
  }
  // The overhead is charged when the object is resident; until then it is left as headroom.
  account_->Subtract(kObjectOverheadBytes);
  PendingPut put;
  KVIK_ASSIGN(put.buffer_, WritableBuffer::Allocate(size_bytes, account_));
  put.meta_ = std::make_shared<const ObjectMeta>(meta);
  put.deadline_us_ = deadline_us;
  return std::optional<PendingPut>(std::move(put));
}

Result<Object> MemoryTier::Commit(PendingPut put) {
  KVIK_CHECK(put.meta_ != nullptr, "a put is committed once");
  Object object{std::move(put.meta_), std::move(put.buffer_).Freeze()};
  const uint64_t charge_bytes = object.bytes.size_bytes() + kObjectOverheadBytes;
  MutexLock lock(mutex_);
  DropExpired();
  if (clock_.NowMicros() >= put.deadline_us_) {
    ++stats_.timeouts;
    return Err(ErrorCode::kTimeout, "the put of an object was not finished in time");
  }
  if (const auto slot = catalog_.Find(object.meta->key)) {
    ++stats_.duplicates;
    return Object{catalog_.meta(*slot), buffers_[*slot]};
  }
  // Others may have come since the room was made.
  const MayGo nobody_holds = [this](Slot slot)
                                 KVIK_REQUIRES(mutex_) { return buffers_[slot].unique(); };
  const auto in_the_way = catalog_.InTheWay(object.meta->key, charge_bytes, nobody_holds);
  if (!in_the_way || !account_->TryAdd(kObjectOverheadBytes, options_.budget_bytes)) {
    ++stats_.rejected;
    return Err(ErrorCode::kExhausted, "what came meanwhile leaves the object no room");
  }
  stats_.evictions += EraseAll(*in_the_way);
  Insert(object.meta, object.bytes);
  return object;
}

Result<int64_t> MemoryTier::Remove(std::span<const ObjectKey> keys, int64_t /*deadline_us*/) {
  MutexLock lock(mutex_);
  DropExpired();
  int64_t removed = 0;
  for (const ObjectKey& key : keys) {
    if (const std::optional<Slot> slot = catalog_.Find(key)) {
      Erase(*slot);
      ++removed;
    }
  }
  stats_.removals += removed;
  return removed;
}

Result<int64_t> MemoryTier::RemoveMatching(const RemoveFilter& filter, int64_t /*deadline_us*/) {
  MutexLock lock(mutex_);
  DropExpired();
  const int64_t removed = EraseAll(catalog_.Match(filter));
  stats_.removals += removed;
  return removed;
}

TierStats MemoryTier::stats() const {
  MutexLock lock(mutex_);
  TierStats stats = stats_;
  stats.objects = static_cast<int64_t>(catalog_.size());
  stats.used_bytes = account_->used_bytes();
  return stats;
}

Result<void> MemoryTier::Pin(const ObjectKey& key, PinKind kind, int64_t ttl_us) {
  MutexLock lock(mutex_);
  DropExpired();
  const std::optional<Slot> slot = catalog_.Find(key);
  if (!slot) {
    return Err(ErrorCode::kNotFound, "the object to pin is not in memory");
  }
  return catalog_.Pin(*slot, kind, ttl_us, clock_.NowMicros());
}

void MemoryTier::Unpin(const ObjectKey& key) {
  MutexLock lock(mutex_);
  if (const std::optional<Slot> slot = catalog_.Find(key)) {
    catalog_.Unpin(*slot);
  }
}

void MemoryTier::Sweep() {
  MutexLock lock(mutex_);
  DropExpired();
}

uint64_t MemoryTier::used_bytes() const { return account_->used_bytes(); }

void MemoryTier::CheckInvariant(bool idle) const {
  MutexLock lock(mutex_);
  catalog_.CheckInvariant();
  KVIK_CHECK(account_->used_bytes() >= catalog_.charged_bytes());
  KVIK_CHECK(account_->used_bytes() <= options_.budget_bytes);
  if (idle) {
    KVIK_CHECK(account_->used_bytes() == catalog_.charged_bytes(),
               "%llu bytes are charged, %llu are resident",
               static_cast<unsigned long long>(account_->used_bytes()),
               static_cast<unsigned long long>(catalog_.charged_bytes()));
  }
}

}  // namespace kvik::store
