// SPDX-License-Identifier: Apache-2.0
#include "store/catalog.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace kvik::store {
namespace {

uint64_t ShareOf(uint64_t bytes, double share) {
  return static_cast<uint64_t>(static_cast<double>(bytes) * share);
}

int64_t EndOf(int64_t now_us, int64_t duration_us) {
  return duration_us <= 0 || duration_us > kNoDeadline - std::max<int64_t>(now_us, 0)
             ? kNoDeadline
             : now_us + duration_us;
}

}  // namespace

size_t Catalog::BlockRefHash::operator()(const BlockRef& ref) const {
  return ref.block.content.Digest() ^ ref.block.numerics.value ^ ref.tenant.value;
}

Catalog::Catalog(CatalogOptions options)
    : options_(std::move(options)),
      order_(MakeEvictionOrder(options_.eviction)),
      soft_(MakeEvictionOrder(EvictionKind::kLru)) {
  KVIK_CHECK(options_.max_encodings >= 1);
}

Catalog::~Catalog() = default;

const Catalog::Entry& Catalog::At(Slot slot) const {
  KVIK_CHECK(slot < entries_.size() && entries_[slot].meta != nullptr);
  return entries_[slot];
}

Catalog::Entry& Catalog::At(Slot slot) {
  KVIK_CHECK(slot < entries_.size() && entries_[slot].meta != nullptr);
  return entries_[slot];
}

std::optional<Slot> Catalog::Find(const ObjectKey& key) const {
  const auto chunk = chunks_.find({key.block, key.tenant});
  if (chunk == chunks_.end()) {
    return std::nullopt;
  }
  for (Slot slot = chunk->second; slot != kNoSlot; slot = entries_[slot].next_encoding) {
    if (entries_[slot].meta->key.profile_hash == key.profile_hash) {
      return slot;
    }
  }
  return std::nullopt;
}

std::vector<FoundObject> Catalog::Lookup(const BlockQuery& query, TierKind tier,
                                         int64_t now_us) const {
  std::vector<FoundObject> found;
  for (size_t i = 0; i < query.blocks.size(); ++i) {
    const auto chunk =
        chunks_.find({{.content = query.blocks[i], .numerics = query.numerics}, query.tenant});
    if (chunk == chunks_.end()) {
      continue;
    }
    for (Slot slot = chunk->second; slot != kNoSlot; slot = entries_[slot].next_encoding) {
      const Entry& entry = entries_[slot];
      if (entry.meta->blocks.size() <= i + 1 && now_us < entry.expires_us) {
        found.push_back(FoundObject{.last_block = static_cast<int32_t>(i),
                                    .info = {.key = entry.meta->key,
                                             .num_blocks = entry.meta->num_blocks(),
                                             .quality = entry.meta->quality,
                                             .size_bytes = entry.size_bytes,
                                             .tier = tier}});
      }
    }
  }
  return found;
}

Result<void> Catalog::Admits(const ObjectKey& key, uint64_t charge_bytes) const {
  const uint64_t limit = ShareOf(options_.budget_bytes, options_.max_object_share);
  if (charge_bytes > limit) {
    return Err(
        ErrorCode::kExhausted, "an object of %llu bytes is more than one may take (%llu of %llu)",
        static_cast<unsigned long long>(charge_bytes), static_cast<unsigned long long>(limit),
        static_cast<unsigned long long>(options_.budget_bytes));
  }
  const auto quota = options_.quotas_bytes.find(key.tenant);
  if (quota != options_.quotas_bytes.end() && charge_bytes > quota->second) {
    return Err(ErrorCode::kExhausted, "an object of %llu bytes is more than its tenant's quota",
               static_cast<unsigned long long>(charge_bytes));
  }
  return {};
}

std::optional<std::vector<Slot>> Catalog::InTheWay(const ObjectKey& key, uint64_t charge_bytes,
                                                   const MayGo& may_go) const {
  std::vector<Slot> victims;
  uint64_t freed_of_tenant = 0;
  const auto goes = [&](Slot slot) { return entries_[slot].pin != PinKind::kHard && may_go(slot); };
  const auto chunk = chunks_.find({key.block, key.tenant});
  if (chunk != chunks_.end()) {
    int encodings = 0;
    Slot oldest = kNoSlot;
    for (Slot slot = chunk->second; slot != kNoSlot; slot = entries_[slot].next_encoding) {
      ++encodings;
      if (goes(slot) && (oldest == kNoSlot || entries_[slot].used_at < entries_[oldest].used_at)) {
        oldest = slot;
      }
    }
    if (encodings >= options_.max_encodings) {
      if (oldest == kNoSlot) {
        return std::nullopt;
      }
      victims.push_back(oldest);
      freed_of_tenant += entries_[oldest].charge_bytes;
    }
  }
  const auto quota = options_.quotas_bytes.find(key.tenant);
  const auto tenant = tenants_.find(key.tenant);
  if (quota == options_.quotas_bytes.end() || tenant == tenants_.end()) {
    return victims;
  }
  const auto fits = [&] {
    return tenant->second.charge_bytes - freed_of_tenant + charge_bytes <= quota->second;
  };
  for (auto slot = tenant->second.slots.begin(); !fits() && slot != tenant->second.slots.end();
       ++slot) {
    if (goes(*slot) && (victims.empty() || victims.front() != *slot)) {
      victims.push_back(*slot);
      freed_of_tenant += entries_[*slot].charge_bytes;
    }
  }
  if (!fits()) {
    return std::nullopt;
  }
  return victims;
}

void Catalog::EnterOrder(Slot slot) {
  const Entry& entry = entries_[slot];
  if (entry.pin == PinKind::kHard) {
    hard_pinned_bytes_ += entry.charge_bytes;
  } else {
    (entry.pin == PinKind::kSoft ? soft_ : order_)
        ->Insert(slot, entry.meta->key.Digest(), entry.charge_bytes);
  }
}

void Catalog::LeaveOrder(Slot slot) {
  const Entry& entry = entries_[slot];
  if (entry.pin == PinKind::kHard) {
    hard_pinned_bytes_ -= entry.charge_bytes;
  } else if (entry.in_order) {
    (entry.pin == PinKind::kSoft ? soft_ : order_)->Remove(slot);
  }
}

Slot Catalog::Insert(std::shared_ptr<const ObjectMeta> meta, uint64_t size_bytes,
                     uint64_t charge_bytes, int64_t now_us) {
  KVIK_CHECK(!Find(meta->key));
  Slot slot = static_cast<Slot>(entries_.size());
  if (free_.empty()) {
    entries_.emplace_back();
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  Entry& entry = entries_[slot];
  entry = Entry{};
  entry.meta = std::move(meta);
  entry.size_bytes = size_bytes;
  entry.charge_bytes = charge_bytes;
  entry.expires_us = EndOf(now_us, entry.meta->ttl_us);
  entry.used_at = ++uses_;
  const ObjectKey& key = entry.meta->key;
  const auto [chunk, first] = chunks_.try_emplace({key.block, key.tenant}, kNoSlot);
  entry.next_encoding = chunk->second;
  chunk->second = slot;
  Tenant& tenant = tenants_[key.tenant];
  tenant.slots.push_back(slot);
  tenant.charge_bytes += charge_bytes;
  entry.of_tenant = std::prev(tenant.slots.end());
  EnterOrder(slot);
  if (entry.expires_us != kNoDeadline) {
    ttl_ends_.insert({entry.expires_us, slot});
  }
  ++size_;
  charged_bytes_ += charge_bytes;
  return slot;
}

void Catalog::Erase(Slot slot) {
  Entry& entry = At(slot);
  LeaveOrder(slot);
  if (entry.pin_until_us != kNoDeadline) {
    pin_ends_.erase({entry.pin_until_us, slot});
  }
  if (entry.expires_us != kNoDeadline) {
    ttl_ends_.erase({entry.expires_us, slot});
  }
  const ObjectKey& key = entry.meta->key;
  const auto chunk = chunks_.find({key.block, key.tenant});
  Slot* link = &chunk->second;
  while (*link != slot) {
    link = &entries_[*link].next_encoding;
  }
  *link = entry.next_encoding;
  if (chunk->second == kNoSlot) {
    chunks_.erase(chunk);
  }
  const auto tenant = tenants_.find(key.tenant);
  tenant->second.slots.erase(entry.of_tenant);
  tenant->second.charge_bytes -= entry.charge_bytes;
  if (tenant->second.slots.empty()) {
    tenants_.erase(tenant);
  }
  --size_;
  charged_bytes_ -= entry.charge_bytes;
  entry = Entry{};
  free_.push_back(slot);
}

void Catalog::Touch(Slot slot) {
  Entry& entry = At(slot);
  entry.used_at = ++uses_;
  entry.used_again = true;
  auto& of_tenant = tenants_.find(entry.meta->key.tenant)->second.slots;
  of_tenant.splice(of_tenant.end(), of_tenant, entry.of_tenant);
  if (entry.pin != PinKind::kHard) {
    (entry.pin == PinKind::kSoft ? soft_ : order_)->Touch(slot);
  }
}

std::optional<Slot> Catalog::Victim(const MayGo& may_go) {
  for (EvictionOrder* order : {order_.get(), soft_.get()}) {
    if (const std::optional<Slot> victim = order->PopVictim(may_go)) {
      entries_[*victim].in_order = false;
      return victim;
    }
  }
  return std::nullopt;
}

Result<void> Catalog::Pin(Slot slot, PinKind kind, int64_t ttl_us, int64_t now_us) {
  Entry& entry = At(slot);
  const uint64_t limit = ShareOf(options_.budget_bytes, options_.max_pinned_share);
  if (kind == PinKind::kHard && entry.pin != PinKind::kHard &&
      hard_pinned_bytes_ + entry.charge_bytes > limit) {
    return Err(ErrorCode::kExhausted, "%llu bytes are pinned, %llu may be",
               static_cast<unsigned long long>(hard_pinned_bytes_),
               static_cast<unsigned long long>(limit));
  }
  Unpin(slot);
  LeaveOrder(slot);
  entry.pin = kind;
  EnterOrder(slot);
  if (kind != PinKind::kNone) {
    entry.pin_until_us = EndOf(now_us, ttl_us);
    if (entry.pin_until_us != kNoDeadline) {
      pin_ends_.insert({entry.pin_until_us, slot});
    }
  }
  return {};
}

void Catalog::Unpin(Slot slot) {
  Entry& entry = At(slot);
  if (entry.pin == PinKind::kNone) {
    return;
  }
  if (entry.pin_until_us != kNoDeadline) {
    pin_ends_.erase({entry.pin_until_us, slot});
    entry.pin_until_us = kNoDeadline;
  }
  LeaveOrder(slot);
  entry.pin = PinKind::kNone;
  EnterOrder(slot);
}

std::vector<Slot> Catalog::Expire(int64_t now_us) {
  while (!pin_ends_.empty() && pin_ends_.begin()->first <= now_us) {
    Unpin(pin_ends_.begin()->second);
  }
  std::vector<Slot> ended;
  for (auto end = ttl_ends_.begin(); end != ttl_ends_.end() && end->first <= now_us; ++end) {
    ended.push_back(end->second);
  }
  return ended;
}

std::vector<Slot> Catalog::Match(const RemoveFilter& filter) const {
  std::vector<const ObjectMeta*> metas;
  std::vector<Slot> slots;
  for (Slot slot = 0; slot < entries_.size(); ++slot) {
    if (entries_[slot].meta != nullptr) {
      metas.push_back(entries_[slot].meta.get());
      slots.push_back(slot);
    }
  }
  std::vector<Slot> matching;
  for (const size_t i : Matching(metas, filter)) {
    matching.push_back(slots[i]);
  }
  return matching;
}

const std::shared_ptr<const ObjectMeta>& Catalog::meta(Slot slot) const { return At(slot).meta; }
uint64_t Catalog::size_bytes(Slot slot) const { return At(slot).size_bytes; }
uint64_t Catalog::charge_bytes(Slot slot) const { return At(slot).charge_bytes; }
bool Catalog::expired(Slot slot, int64_t now_us) const { return now_us >= At(slot).expires_us; }
PinKind Catalog::pin(Slot slot) const { return At(slot).pin; }
bool Catalog::used_again(Slot slot) const { return At(slot).used_again; }

uint64_t Catalog::tenant_bytes(TenantId tenant) const {
  const auto found = tenants_.find(tenant);
  return found == tenants_.end() ? 0 : found->second.charge_bytes;
}

void Catalog::CheckInvariant() const {
  size_t objects = 0;
  uint64_t bytes = 0;
  uint64_t pinned = 0;
  size_t timed_pins = 0;
  size_t timed = 0;
  std::map<TenantId, uint64_t> of_tenants;
  for (Slot slot = 0; slot < entries_.size(); ++slot) {
    const Entry& entry = entries_[slot];
    if (entry.meta == nullptr) {
      continue;
    }
    ++objects;
    bytes += entry.charge_bytes;
    pinned += entry.pin == PinKind::kHard ? entry.charge_bytes : 0;
    timed_pins += entry.pin_until_us != kNoDeadline ? 1 : 0;
    timed += entry.expires_us != kNoDeadline ? 1 : 0;
    of_tenants[entry.meta->key.tenant] += entry.charge_bytes;
    KVIK_CHECK(Find(entry.meta->key) == slot);
    KVIK_CHECK(*entry.of_tenant == slot);
  }
  KVIK_CHECK(objects == size_ && objects + free_.size() == entries_.size());
  KVIK_CHECK(bytes == charged_bytes_ && pinned == hard_pinned_bytes_);
  KVIK_CHECK(timed_pins == pin_ends_.size() && timed == ttl_ends_.size());
  size_t listed = 0;
  KVIK_CHECK(of_tenants.size() == tenants_.size());
  for (const auto& [id, tenant] : tenants_) {
    listed += tenant.slots.size();
    KVIK_CHECK(of_tenants[id] == tenant.charge_bytes);
  }
  KVIK_CHECK(listed == objects);
}

}  // namespace kvik::store
