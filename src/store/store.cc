// SPDX-License-Identifier: Apache-2.0
#include "store/store.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <thread>
#include <unordered_set>
#include <utility>

#include "base/bounded_queue.h"
#include "base/mutex.h"
#include "base/outage.h"
#include "base/thread_priority.h"
#include "kv/ghost_map.h"
#include "store/read_lease.h"

namespace kvik::store {
namespace {

constexpr size_t kBatchObjects = 16;  // to a lower tier at once
constexpr size_t kMaxPrefetches = 4096;
constexpr size_t kRememberedPuts = 65536;
constexpr std::chrono::milliseconds kUpkeepEvery(500);

int64_t After(int64_t now_us, int64_t duration_us) {
  return duration_us > kNoDeadline - std::max<int64_t>(now_us, 0) ? kNoDeadline
                                                                  : now_us + duration_us;
}

// Work for one thread, in order.
struct Lane {
  Tier* tier = nullptr;  // where objects go; null: the lane of prefetches
  // That the device or the network of `tier` fails is said here.
  std::unique_ptr<Outage> outage;
  std::deque<Object> objects;  // to write
  std::deque<ObjectKey> keys;  // to prefetch
  uint64_t queued_bytes = 0;   // of objects, in the queue and at work
  bool busy = false;           // a batch is out
  std::unique_ptr<BoundedQueue<int>> wake = std::make_unique<BoundedQueue<int>>(1);
};

// Of the device or the network.
int64_t Faults(const Tier& tier) {
  const TierStats stats = tier.stats();
  return stats.errors + stats.timeouts;
}

}  // namespace

struct Store::State {
  State(const StoreOptions& the_options, const Clock& the_clock)
      : options(the_options), clock(the_clock), leases(the_clock), fresh(kRememberedPuts) {}

  const StoreOptions options;
  const Clock& clock;
  LeaseBook leases;
  std::unique_ptr<MemoryTier> memory;
  std::unique_ptr<DiskTier> disk;
  std::vector<std::unique_ptr<Tier>> remote;
  std::vector<Tier*> lower;  // disk and remote, in order of asking

  mutable Mutex mutex;
  CondVar changed;
  std::vector<Lane> lanes KVIK_GUARDED_BY(mutex);  // prefetches, then one for each of `lower`
  int paused KVIK_GUARDED_BY(mutex) = 0;           // removals under way: no batch may start
  bool closing KVIK_GUARDED_BY(mutex) = false;
  int64_t closing_deadline_us KVIK_GUARDED_BY(mutex) = kNoDeadline;
  // Moves on when something was removed: what was read before must not be promoted after.
  uint64_t epoch KVIK_GUARDED_BY(mutex) = 0;
  kv::GhostMap<char> fresh KVIK_GUARDED_BY(mutex);  // committed and not read yet, by digest
  StoreStats stats KVIK_GUARDED_BY(mutex);

  std::vector<std::thread> threads;

  void Wake(Lane& lane) {
    int token = 0;
    (void)lane.wake->TryPush(token);
  }

  // To all lower tiers before `end`, counted from the fastest.
  void WriteBackTo(const Object& object, size_t end) KVIK_EXCLUDES(mutex) {
    MutexLock lock(mutex);
    const uint64_t size_bytes = object.bytes.size_bytes();
    for (size_t i = 0; i < end; ++i) {
      Lane& lane = lanes[i + 1];
      if (lane.queued_bytes + size_bytes > options.write_back_queue_bytes) {
        ++stats.write_backs_dropped;
        continue;
      }
      lane.queued_bytes += size_bytes;
      lane.objects.push_back(object);
      Wake(lane);
    }
  }

  // After a put: now, or once it is read.
  void WriteBackCommitted(const Object& object) KVIK_EXCLUDES(mutex) {
    if (lower.empty()) {
      return;
    }
    if (options.write_back == WriteBack::kOnPut) {
      WriteBackTo(object, lower.size());
      return;
    }
    MutexLock lock(mutex);
    fresh.Add(object.meta->key.Digest(), 0);
  }
  void WriteBackReused(const Object& object) KVIK_EXCLUDES(mutex) {
    if (options.write_back != WriteBack::kOnReuse || lower.empty()) {
      return;
    }
    {
      MutexLock lock(mutex);
      if (!fresh.Take(object.meta->key.Digest())) {
        return;
      }
    }
    WriteBackTo(object, lower.size());
  }

  void Promote(const Object& object, uint64_t read_at_epoch) KVIK_EXCLUDES(mutex) {
    MutexLock lock(mutex);
    if (epoch == read_at_epoch && memory->Share(object)) {
      ++stats.promotions;
    }
  }

  // Objects in the order of `keys`, from the fastest tier that has them, and which one that was.
  std::vector<std::pair<Result<Object>, TierKind>> Fetch(std::span<const ObjectKey> keys,
                                                         int64_t deadline_us, bool promote)
      KVIK_EXCLUDES(mutex) {
    uint64_t read_at_epoch = 0;
    {
      MutexLock lock(mutex);
      read_at_epoch = epoch;
    }
    std::vector<std::pair<Result<Object>, TierKind>> results;
    for (auto& object : memory->Get(keys, deadline_us)) {
      if (object) {
        WriteBackReused(*object);
      }
      results.emplace_back(std::move(object), TierKind::kMemory);
    }
    for (size_t i = 0; i < lower.size(); ++i) {
      std::vector<size_t> missing;
      std::vector<ObjectKey> missing_keys;
      for (size_t k = 0; k < keys.size(); ++k) {
        if (!results[k].first) {
          missing.push_back(k);
          missing_keys.push_back(keys[k]);
        }
      }
      if (missing.empty()) {
        break;
      }
      auto found = lower[i]->Get(missing_keys, deadline_us);
      for (size_t m = 0; m < missing.size(); ++m) {
        if (found[m] && promote) {
          Promote(*found[m], read_at_epoch);
          if (options.write_back == WriteBack::kOnPut) {
            WriteBackTo(*found[m], i);  // the faster ones among the lower tiers
          }
        }
        results[missing[m]] = {std::move(found[m]), lower[i]->kind()};
      }
    }
    return results;
  }

  // --- the background ---

  // A batch of the lane's work; false when there is none or none may start.
  bool DoSome(size_t lane_index) KVIK_EXCLUDES(mutex) {
    std::vector<Object> objects;
    std::vector<ObjectKey> keys;
    Tier* tier = nullptr;
    Outage* outage = nullptr;
    int64_t deadline_us = 0;
    {
      MutexLock lock(mutex);
      Lane& lane = lanes[lane_index];
      if (paused > 0 || lane.busy) {
        return false;
      }
      while (!lane.objects.empty() && objects.size() < kBatchObjects) {
        objects.push_back(std::move(lane.objects.front()));
        lane.objects.pop_front();
      }
      while (!lane.keys.empty() && keys.size() < kBatchObjects) {
        keys.push_back(lane.keys.front());
        lane.keys.pop_front();
      }
      if (objects.empty() && keys.empty()) {
        return false;
      }
      lane.busy = true;
      tier = lane.tier;
      outage = lane.outage.get();
      deadline_us =
          std::min(After(clock.NowMicros(), options.background_timeout_us), closing_deadline_us);
    }
    int64_t written = 0;
    uint64_t done_bytes = 0;
    std::optional<Error> failed;
    if (tier == nullptr) {
      (void)Fetch(keys, deadline_us, true);
    } else {
      const int64_t faults_before = Faults(*tier);
      for (const auto& put : tier->Put(objects, deadline_us)) {
        written += put ? 1 : 0;
        if (!put) {
          failed = put.error();
        }
      }
      // What it does not want, or has no room for by its own rules, is no fault.
      if (written > 0) {
        outage->Worked();
      } else if (failed && Faults(*tier) > faults_before) {
        outage->Failed(*failed);
      }
      for (const Object& object : objects) {
        done_bytes += object.bytes.size_bytes();
      }
    }
    const auto count = static_cast<int64_t>(objects.size());
    objects.clear();  // let go of the bytes before anybody hears that they are
    MutexLock lock(mutex);
    Lane& lane = lanes[lane_index];
    lane.busy = false;
    lane.queued_bytes -= done_bytes;
    stats.write_backs += written;
    stats.write_backs_dropped += count - written;
    changed.NotifyAll();
    return true;
  }

  void Upkeep() KVIK_EXCLUDES(mutex) {
    memory->Sweep();
    if (disk != nullptr) {
      disk->Sweep();
    }
    const int64_t expired = leases.Sweep();
    MutexLock lock(mutex);
    stats.expired_leases += expired;
  }

  void RunLane(size_t lane_index) KVIK_EXCLUDES(mutex) {
    if (lane_index > 0) {
      YieldToOtherThreads();  // nobody waits for what is written
    }
    BoundedQueue<int>* wake = nullptr;
    {
      MutexLock lock(mutex);
      wake = lanes[lane_index].wake.get();
    }
    for (;;) {
      (void)wake->PopFor(kUpkeepEvery);
      while (DoSome(lane_index)) {
      }
      if (lane_index == 0) {
        Upkeep();
      }
      MutexLock lock(mutex);
      const Lane& lane = lanes[lane_index];
      const bool done = lane.objects.empty() && lane.keys.empty();
      if (closing && (done || clock.NowMicros() >= closing_deadline_us)) {
        return;
      }
    }
  }

  [[nodiscard]] bool Idle() const KVIK_REQUIRES(mutex) {
    return std::all_of(lanes.begin(), lanes.end(), [](const Lane& lane) {
      return !lane.busy && lane.objects.empty() && lane.keys.empty();
    });
  }

  // --- removal ---

  // Takes the queued work that concerns these objects back.
  void Unqueue(const std::function<bool(const ObjectMeta&)>& concerned) KVIK_REQUIRES(mutex) {
    for (Lane& lane : lanes) {
      for (auto object = lane.objects.begin(); object != lane.objects.end();) {
        if (concerned(*object->meta)) {
          lane.queued_bytes -= object->bytes.size_bytes();
          object = lane.objects.erase(object);
        } else {
          ++object;
        }
      }
    }
  }

  // No batch is out and none starts while `remove` runs on each lower tier, then on memory: so that
  // nothing comes back from where it was removed by way of where it was not yet.
  Result<int64_t> RemoveEverywhere(const std::function<bool(const ObjectMeta&)>& concerned,
                                   const std::function<Result<int64_t>(Tier&)>& remove)
      KVIK_EXCLUDES(mutex) {
    {
      MutexLock lock(mutex);
      ++paused;
      Unqueue(concerned);
      while (std::any_of(lanes.begin(), lanes.end(), [](const Lane& lane) { return lane.busy; })) {
        changed.Wait(mutex);
      }
    }
    int64_t removed = 0;
    std::optional<Error> failed;
    const auto remove_from = [&](Tier& tier) {
      if (auto n = remove(tier)) {
        removed += *n;
      } else if (!failed) {
        failed = n.error();
      }
    };
    for (Tier* tier : lower) {
      remove_from(*tier);
    }
    {
      MutexLock lock(mutex);
      ++epoch;
      Unqueue(concerned);
    }
    remove_from(*memory);
    {
      MutexLock lock(mutex);
      --paused;
      for (Lane& lane : lanes) {
        Wake(lane);
      }
    }
    if (failed) {
      return *failed;
    }
    return removed;
  }
};

Result<std::unique_ptr<Store>> Store::Open(const StoreOptions& options, const Clock& clock,
                                           FileSystem& files,
                                           std::vector<std::unique_ptr<Tier>> remote,
                                           std::shared_ptr<EventSink> events) {
  if (options.lease_us <= 0 || options.put_timeout_us <= 0 || options.background_timeout_us <= 0) {
    return Err(ErrorCode::kInvalidInput, "leases and timeouts of a store are positive");
  }
  auto state = std::make_unique<State>(options, clock);
  KVIK_ASSIGN(state->memory, MemoryTier::Create(options.memory, clock, events));
  if (options.disk) {
    KVIK_ASSIGN(state->disk, DiskTier::Open(*options.disk, clock, files, events));
    state->lower.push_back(state->disk.get());
  }
  state->remote = std::move(remote);
  for (const auto& tier : state->remote) {
    state->lower.push_back(tier.get());
  }
  {
    MutexLock lock(state->mutex);
    state->lanes.resize(1 + state->lower.size());
    for (size_t i = 0; i < state->lower.size(); ++i) {
      Lane& lane = state->lanes[i + 1];
      lane.tier = state->lower[i];
      lane.outage = std::make_unique<Outage>(std::string("the KV store's ") +
                                             TierKindName(lane.tier->kind()));
    }
  }
  if (options.background) {
    for (size_t i = 0; i <= state->lower.size(); ++i) {
      state->threads.emplace_back([s = state.get(), i] { s->RunLane(i); });
    }
  }
  return std::unique_ptr<Store>(new Store(std::move(state)));
}

Store::Store(std::unique_ptr<State> state) : state_(std::move(state)) {}

Store::~Store() {
  {
    MutexLock lock(state_->mutex);
    state_->closing = true;
    state_->closing_deadline_us =
        After(state_->clock.NowMicros(), state_->options.background_timeout_us);
    for (Lane& lane : state_->lanes) {
      state_->Wake(lane);
    }
  }
  for (std::thread& thread : state_->threads) {
    thread.join();
  }
}

LookupResult Store::Lookup(const BlockQuery& query, const kv::MinQuality& accepted,
                           const LookupOptions& options) {
  LookupResult result;
  std::unordered_set<ObjectKey, ObjectKeyHash> seen;
  const auto ask = [&](Tier& tier) {
    auto found = tier.Lookup(query, options.deadline_us);
    if (!found) {
      result.failed.push_back(tier.kind());
      return;
    }
    for (FoundObject& object : *found) {
      const bool possible =
          object.last_block >= 0 && object.last_block < static_cast<int32_t>(query.blocks.size()) &&
          object.info.num_blocks >= 1 && object.info.num_blocks <= object.last_block + 1;
      if (possible && seen.insert(object.info.key).second) {
        result.objects.push_back(std::move(object));
      }
    }
  };
  ask(*state_->memory);
  if (state_->disk != nullptr) {
    ask(*state_->disk);
  }
  if (!options.local_only) {
    for (const auto& tier : state_->remote) {
      ask(*tier);
    }
  }
  std::stable_sort(
      result.objects.begin(), result.objects.end(),
      [](const FoundObject& a, const FoundObject& b) { return a.last_block < b.last_block; });
  result.coverage = CoverageOf(static_cast<int32_t>(query.blocks.size()), result.objects, accepted);
  if (!result.failed.empty()) {
    MutexLock lock(state_->mutex);
    state_->stats.lookup_failures += static_cast<int64_t>(result.failed.size());
  }
  return result;
}

std::vector<Result<ReadLease>> Store::Read(std::span<const ObjectKey> keys,
                                           const ReadOptions& options) {
  const int64_t lease_us = options.lease_us > 0 ? options.lease_us : state_->options.lease_us;
  std::vector<Result<ReadLease>> leases;
  leases.reserve(keys.size());
  for (auto& [object, tier] : state_->Fetch(keys, options.deadline_us, options.promote)) {
    if (object) {
      leases.emplace_back(state_->leases.Grant(std::move(*object), tier, lease_us));
    } else {
      leases.emplace_back(object.error());
    }
  }
  return leases;
}

bool Store::Prefetch(std::span<const ObjectKey> keys) {
  MutexLock lock(state_->mutex);
  Lane& lane = state_->lanes.front();
  if (lane.keys.size() + keys.size() > kMaxPrefetches) {
    return false;
  }
  lane.keys.insert(lane.keys.end(), keys.begin(), keys.end());
  state_->Wake(lane);
  return true;
}

Result<std::optional<PendingPut>> Store::BeginPut(const ObjectMeta& meta, uint64_t size_bytes,
                                                  PutOptions options) {
  KVIK_ASSIGN(
      std::optional<PendingPut> put,
      state_->memory->BeginPut(meta, size_bytes,
                               After(state_->clock.NowMicros(), state_->options.put_timeout_us)));
  if (put) {
    put->write_back_ = options.write_back;
  }
  return put;
}

Result<void> Store::Commit(PendingPut put) {
  const bool write_back = put.write_back_;
  KVIK_ASSIGN(const Object object, state_->memory->Commit(std::move(put)));
  if (write_back) {
    state_->WriteBackCommitted(object);
  }
  return {};
}

Result<void> Store::Put(const ObjectMeta& meta, const Buffer& bytes, PutOptions options) {
  KVIK_TRY(meta.Check());
  const Object object{std::make_shared<const ObjectMeta>(meta), bytes};
  if (state_->memory->Exists({&meta.key, 1}, kNoDeadline)->front()) {
    return {};
  }
  KVIK_TRY(state_->memory->Share(object));
  if (options.write_back) {
    state_->WriteBackCommitted(object);
  }
  return {};
}

Result<void> Store::Pin(const ObjectKey& key, PinKind kind, int64_t ttl_us) {
  auto pinned = state_->memory->Pin(key, kind, ttl_us);
  if (pinned || pinned.error().code != ErrorCode::kNotFound) {
    return pinned;
  }
  const auto fetched =
      state_->Fetch({&key, 1}, After(state_->clock.NowMicros(), state_->options.lease_us), true);
  if (!fetched.front().first) {
    return fetched.front().first.error();
  }
  return state_->memory->Pin(key, kind, ttl_us);
}

void Store::Unpin(const ObjectKey& key) { state_->memory->Unpin(key); }

Result<int64_t> Store::Remove(std::span<const ObjectKey> keys, int64_t deadline_us) {
  const std::unordered_set<ObjectKey, ObjectKeyHash> set(keys.begin(), keys.end());
  return state_->RemoveEverywhere([&](const ObjectMeta& meta) { return set.count(meta.key) != 0; },
                                  [&](Tier& tier) { return tier.Remove(keys, deadline_us); });
}

Result<int64_t> Store::RemoveMatching(const RemoveFilter& filter, int64_t deadline_us) {
  // What is queued may descend from what is not: by prefix all of it goes. It is in memory still
  // unless it was removed, and only its copy below is lost.
  return state_->RemoveEverywhere(
      [&](const ObjectMeta& meta) {
        return (!filter.tenant || meta.key.tenant == *filter.tenant) &&
               (!filter.domain || meta.key.block.content.domain == *filter.domain);
      },
      [&](Tier& tier) { return tier.RemoveMatching(filter, deadline_us); });
}

void Store::RunBackground() {
  state_->Upkeep();
  size_t lanes = 0;
  {
    MutexLock lock(state_->mutex);
    lanes = state_->lanes.size();
  }
  for (size_t i = 0; i < lanes; ++i) {
    while (state_->DoSome(i)) {
    }
  }
}

void Store::Flush() {
  if (!state_->options.background) {
    RunBackground();
    return;
  }
  MutexLock lock(state_->mutex);
  while (!state_->Idle()) {
    state_->changed.Wait(state_->mutex);
  }
}

StoreStats Store::stats() const {
  StoreStats stats;
  {
    MutexLock lock(state_->mutex);
    stats = state_->stats;
    for (const Lane& lane : state_->lanes) {
      stats.queued_bytes += lane.queued_bytes;
    }
  }
  stats.tiers.push_back(state_->memory->stats());
  for (const Tier* tier : state_->lower) {
    stats.tiers.push_back(tier->stats());
  }
  return stats;
}

}  // namespace kvik::store
