// SPDX-License-Identifier: Apache-2.0
// store/catalog.h: which objects a tier holds, what they cost, who may go and who goes next.
//
// Pure: no bytes, no locks, no clock. A tier keeps the bytes (or where they are) beside the slots
// that the catalog hands out. Thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/eviction_order.h"
#include "store/object.h"
#include "store/tier.h"

namespace kvik::store {

enum class PinKind : uint8_t {
  kNone,
  kSoft,  // goes when nothing else is left
  kHard,  // does not go
};

struct CatalogOptions {
  uint64_t budget_bytes = 0;
  double max_object_share = 0.25;  // of the budget, that one object may take
  double max_pinned_share = 0.5;   // of the budget, under hard pins
  int max_encodings = 3;           // of one chunk; a further one replaces the one used longest ago
  EvictionKind eviction = EvictionKind::kS3Fifo;
  std::map<TenantId, uint64_t> quotas_bytes;  // of those tenants that have one
};

// Whether an object may be a victim now, as far as the tier knows.
using MayGo = std::function<bool(Slot)>;

class Catalog {
 public:
  explicit Catalog(CatalogOptions options);
  ~Catalog();
  Catalog(const Catalog&) = delete;
  Catalog& operator=(const Catalog&) = delete;

  [[nodiscard]] std::optional<Slot> Find(const ObjectKey& key) const;
  // The objects that end at the blocks of the query and lie within it, ascending by last_block.
  // What has expired at `now_us` is left out. `tier` is filled in as given.
  [[nodiscard]] std::vector<FoundObject> Lookup(const BlockQuery& query, TierKind tier,
                                                int64_t now_us) const;

  // Whether an object of this charge may be held at all: kExhausted names the limit.
  [[nodiscard]] Result<void> Admits(const ObjectKey& key, uint64_t charge_bytes) const;
  // What must go before such an object may be inserted besides room in the whole: victims of its
  // tenant's quota and of the encodings of its chunk. nullopt when pins or `may_go` forbid it.
  // The caller erases them; nothing is changed here. REQUIRES: Admits.
  [[nodiscard]] std::optional<std::vector<Slot>> InTheWay(const ObjectKey& key,
                                                          uint64_t charge_bytes,
                                                          const MayGo& may_go) const;
  // REQUIRES: not there. The slot may have been another object's before.
  Slot Insert(std::shared_ptr<const ObjectMeta> meta, uint64_t size_bytes, uint64_t charge_bytes,
              int64_t now_us);
  void Erase(Slot slot);

  // The object was used.
  void Touch(Slot slot);
  // Who goes next: by the order, then soft pins; hard pins stay, and what `may_go` refuses. The
  // caller erases it before any other call.
  std::optional<Slot> Victim(const MayGo& may_go);

  // `ttl_us` 0: until Unpin. A new pin replaces the old one. kExhausted beyond max_pinned_share.
  Result<void> Pin(Slot slot, PinKind kind, int64_t ttl_us, int64_t now_us);
  void Unpin(Slot slot);

  // Ends pins whose time is over and returns the objects whose TTL is; the caller erases them.
  [[nodiscard]] std::vector<Slot> Expire(int64_t now_us);
  [[nodiscard]] std::vector<Slot> Match(const RemoveFilter& filter) const;

  // REQUIRES: the slot holds an object, here and in the calls above.
  [[nodiscard]] const std::shared_ptr<const ObjectMeta>& meta(Slot slot) const;
  [[nodiscard]] uint64_t size_bytes(Slot slot) const;
  [[nodiscard]] uint64_t charge_bytes(Slot slot) const;
  [[nodiscard]] bool expired(Slot slot, int64_t now_us) const;
  [[nodiscard]] PinKind pin(Slot slot) const;
  [[nodiscard]] bool used_again(Slot slot) const;  // touched since Insert

  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] uint64_t charged_bytes() const { return charged_bytes_; }
  [[nodiscard]] uint64_t tenant_bytes(TenantId tenant) const;
  [[nodiscard]] const CatalogOptions& options() const { return options_; }

  // Sums, lists and maps agree. Aborts on a violation. O(size).
  void CheckInvariant() const;

 private:
  // A block as a tenant knows it.
  struct BlockRef {
    kv::BlockKey block;
    TenantId tenant;
    friend bool operator==(const BlockRef&, const BlockRef&) = default;
  };
  struct BlockRefHash {
    size_t operator()(const BlockRef& ref) const;
  };
  struct Entry {
    std::shared_ptr<const ObjectMeta> meta;  // null: the slot is free
    uint64_t size_bytes = 0;
    uint64_t charge_bytes = 0;
    int64_t expires_us = kNoDeadline;
    int64_t pin_until_us = kNoDeadline;
    uint64_t used_at = 0;  // use counter, for comparisons within a chunk
    PinKind pin = PinKind::kNone;
    bool used_again = false;
    bool in_order = true;                 // false: chosen as a victim
    Slot next_encoding = kNoSlot;         // of the same chunk
    std::list<Slot>::iterator of_tenant;  // in its tenant's list
  };
  struct Tenant {
    std::list<Slot> slots;  // least recently used first
    uint64_t charge_bytes = 0;
  };
  static constexpr Slot kNoSlot = ~Slot{0};

  [[nodiscard]] const Entry& At(Slot slot) const;
  [[nodiscard]] Entry& At(Slot slot);
  void LeaveOrder(Slot slot);
  void EnterOrder(Slot slot);

  const CatalogOptions options_;
  std::vector<Entry> entries_;
  std::vector<Slot> free_;
  std::unordered_map<BlockRef, Slot, BlockRefHash> chunks_;  // the first encoding
  std::map<TenantId, Tenant> tenants_;
  std::unique_ptr<EvictionOrder> order_;  // unpinned ones
  std::unique_ptr<EvictionOrder> soft_;   // soft pins
  std::set<std::pair<int64_t, Slot>> ttl_ends_;
  std::set<std::pair<int64_t, Slot>> pin_ends_;
  size_t size_ = 0;
  uint64_t charged_bytes_ = 0;
  uint64_t hard_pinned_bytes_ = 0;
  uint64_t uses_ = 0;
};

}  // namespace kvik::store
