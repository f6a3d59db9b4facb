// SPDX-License-Identifier: Apache-2.0
// store/store.h: all tiers as one: memory first, then the local disk, then what is remote.
//
//   Lookup           which objects would serve these blocks, in all tiers, one round trip each
//   Read             bytes under a lease; what came from a lower tier is promoted to memory
//   BeginPut/Commit  two-phase put into memory; lower tiers follow in the background
//   Remove           by key, tenant, domain or prefix, from every tier
//
// A fault of any tier is a miss and a counter, never wrong data and never an error of the whole.
// Thread-safe. Calls block on the tiers they need; an engine thread must not make them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/types.h"
#include "store/coverage.h"
#include "store/disk_tier.h"
#include "store/events.h"
#include "store/file_system.h"
#include "store/memory_tier.h"
#include "store/object.h"
#include "store/read_lease.h"
#include "store/tier.h"

namespace kvik::store {

// Which objects go on to lower tiers.
enum class WriteBack {
  kOnPut,    // every committed one: what is in memory survives a restart
  kOnReuse,  // once it is read for the first time: spares disks the prompts that never come back
};

struct StoreOptions {
  MemoryTierOptions memory;
  std::optional<DiskTierOptions> disk;
  WriteBack write_back = WriteBack::kOnPut;
  // Of each lower tier: objects beyond it stay in memory only.
  uint64_t write_back_queue_bytes = uint64_t{256} << 20;
  // One thread for upkeep and one for each lower tier, so that a slow one holds up no other. False:
  // nothing happens until RunBackground(), and what is queued at the end is dropped.
  bool background = true;
  int64_t lease_us = 10'000'000;
  int64_t put_timeout_us = 60'000'000;
  int64_t background_timeout_us = 10'000'000;  // of a batch to a lower tier, and of closing
};

struct LookupResult {
  // Every object once, under its fastest tier; ascending by last_block; of any quality.
  std::vector<FoundObject> objects;
  Coverage coverage;             // by what the reader accepts
  std::vector<TierKind> failed;  // tiers that could not answer: their objects count as missing
};

struct LookupOptions {
  int64_t deadline_us = kNoDeadline;
  bool local_only = false;  // ask memory and disk, not the network
};

struct ReadOptions {
  int64_t deadline_us = kNoDeadline;
  int64_t lease_us = 0;  // 0: StoreOptions::lease_us
  bool promote = true;   // keep in memory what came from below
};

struct PutOptions {
  bool write_back = true;  // false: memory only
};

struct StoreStats {
  std::vector<TierStats> tiers;  // in order of asking
  int64_t promotions = 0;
  int64_t write_backs = 0;          // objects that reached a lower tier
  int64_t write_backs_dropped = 0;  // the queue was full, or the tier refused
  uint64_t queued_bytes = 0;        // now, for lower tiers
  int64_t expired_leases = 0;       // ended by their time while somebody held them
  int64_t lookup_failures = 0;      // tiers that could not answer a lookup
};

class Store {
 public:
  // Opens the disk tier (rebuilding its index) and starts the background threads. `remote`: asked
  // after memory and disk, in this order. `files` and `clock` outlive the store; `events` may be
  // null.
  static Result<std::unique_ptr<Store>> Open(const StoreOptions& options, const Clock& clock,
                                             FileSystem& files,
                                             std::vector<std::unique_ptr<Tier>> remote = {},
                                             std::shared_ptr<EventSink> events = nullptr);
  // Finishes what was queued for lower tiers, within background_timeout_us. No call may be running.
  // Leases may outlive the store.
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Never fails: a tier that does not answer is named in the result.
  [[nodiscard]] LookupResult Lookup(const BlockQuery& query, const kv::MinQuality& accepted,
                                    const LookupOptions& options = {});

  // [keys.size()]; errors as in Tier::Get, of the last tier that was asked.
  std::vector<Result<ReadLease>> Read(std::span<const ObjectKey> keys,
                                      const ReadOptions& options = {});
  // Asks for a promotion to memory in the background. False when too many wait already.
  bool Prefetch(std::span<const ObjectKey> keys);

  // Room in memory for an object; nullopt when it is in memory already. kExhausted when admission,
  // the tenant's quota or pins and leases leave no room; kInvalidInput.
  Result<std::optional<PendingPut>> BeginPut(const ObjectMeta& meta, uint64_t size_bytes,
                                             PutOptions options = {});
  // Makes it visible. kTimeout when it took longer than put_timeout_us: nothing is stored then.
  Result<void> Commit(PendingPut put);
  // Both at once, sharing `bytes` without a copy.
  Result<void> Put(const ObjectMeta& meta, const Buffer& bytes, PutOptions options = {});

  // See MemoryTier::Pin; an object on disk only is promoted first. kNotFound, kExhausted.
  Result<void> Pin(const ObjectKey& key, PinKind kind, int64_t ttl_us);
  void Unpin(const ObjectKey& key);

  // How many objects went, counting one in several tiers once per tier. Nothing that was there or
  // under way to a lower tier before the call is left after it. The first error of a tier that
  // failed, after all were asked.
  Result<int64_t> Remove(std::span<const ObjectKey> keys, int64_t deadline_us = kNoDeadline);
  Result<int64_t> RemoveMatching(const RemoveFilter& filter, int64_t deadline_us = kNoDeadline);

  // Drops what has expired (objects, pins, leases) and does what is queued. Threads in the
  // background do all this themselves.
  void RunBackground();
  // Waits until everything queued so far has reached the lower tiers or was given up.
  void Flush();

  [[nodiscard]] StoreStats stats() const;

 private:
  struct State;
  explicit Store(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvik::store
