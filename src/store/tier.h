// SPDX-License-Identifier: Apache-2.0
// store/tier.h: one place where objects are kept: memory, disk, a pool node, Redis.
//
// All calls are batches, because a round trip costs the same for one key and for a thousand. A
// tier forgets when it likes; what it returns is right or missing, never wrong. Thread-safe; calls
// block until done or until the deadline (of the Clock that the tier was given).
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/result.h"
#include "store/object.h"

namespace kvik::store {

constexpr int64_t kNoDeadline = std::numeric_limits<int64_t>::max();

// The full blocks of one request, in order from position 0.
struct BlockQuery {
  std::span<const kv::ContentKey> blocks;  // HashChain::keys()
  kv::NumericsTag numerics;                // the reader's own
  TenantId tenant;
};

// An object that ends at block `last_block` of the query and lies within it.
struct FoundObject {
  int32_t last_block = 0;
  ObjectInfo info;
};

// Everything since the start, but for what the names say.
struct TierStats {
  TierKind kind = TierKind::kMemory;
  int64_t objects = 0;         // now
  uint64_t used_bytes = 0;     // now, of the budget
  uint64_t budget_bytes = 0;   // 0: not ours to say
  int64_t lookups = 0;         // calls
  int64_t hits = 0;            // objects returned by Get
  int64_t misses = 0;          // keys asked of Get and not there
  int64_t puts = 0;            // objects taken in
  int64_t duplicates = 0;      // puts of what was there already
  int64_t rejected = 0;        // puts that admission or the lack of room refused
  int64_t evictions = 0;       // objects
  int64_t expirations = 0;     // objects whose TTL ended
  int64_t removals = 0;        // objects removed by request
  int64_t corrupt = 0;         // objects or records that failed their checksum: misses, all of them
  int64_t errors = 0;          // operations that the device or the network failed
  int64_t timeouts = 0;        // operations whose deadline passed
  uint64_t read_bytes = 0;     // of objects
  uint64_t written_bytes = 0;  // of objects
};

class Tier {
 public:
  virtual ~Tier() = default;

  [[nodiscard]] virtual TierKind kind() const = 0;

  // All encodings of all chunks that end at any of the blocks, ascending by last_block; one round
  // trip. Does not count as a use. Errors: kUnavailable, kTimeout.
  virtual Result<std::vector<FoundObject>> Lookup(const BlockQuery& query, int64_t deadline_us) = 0;

  // [keys.size()]. May be wrong by the time it is read. Errors: kUnavailable, kTimeout.
  virtual Result<std::vector<bool>> Exists(std::span<const ObjectKey> keys,
                                           int64_t deadline_us) = 0;

  // [keys.size()]. Each kNotFound, kCorrupt (dropped and counted: a miss), kUnavailable, kTimeout
  // or kExhausted (no memory to read it into).
  virtual std::vector<Result<Object>> Get(std::span<const ObjectKey> keys, int64_t deadline_us) = 0;

  // [objects.size()]. An object is visible whole or not at all. What is there already is success
  // and keeps its TTL. Each kExhausted (admission, quota, no room), kUnavailable, kTimeout or
  // kInvalidInput.
  virtual std::vector<Result<void>> Put(std::span<const Object> objects, int64_t deadline_us) = 0;

  // How many were there and are gone for good: a restart does not bring them back.
  virtual Result<int64_t> Remove(std::span<const ObjectKey> keys, int64_t deadline_us) = 0;
  virtual Result<int64_t> RemoveMatching(const RemoveFilter& filter, int64_t deadline_us) = 0;

  [[nodiscard]] virtual TierStats stats() const = 0;
};

}  // namespace kvik::store
