// SPDX-License-Identifier: Apache-2.0
// store/read_lease.h: the right to read an object for a while.
//
// While a reader holds the bytes they stay in memory. Once it has expired the read fails, whoever
// is late: a reader that streams bytes to a peer asks Check() at the end and tells the peer that
// what it got does not count. A Buffer that it took stays valid memory all the same, and is charged
// until it is dropped.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "store/object.h"

namespace kvik::store {

// Move-only; ends with its destruction. Thread-compatible. May outlive the store.
class ReadLease {
 public:
  ReadLease(ReadLease&& other) noexcept = default;
  ReadLease& operator=(ReadLease&& other) noexcept = default;
  ReadLease(const ReadLease&) = delete;
  ReadLease& operator=(const ReadLease&) = delete;
  ~ReadLease() = default;

  [[nodiscard]] const ObjectMeta& meta() const;
  [[nodiscard]] TierKind tier() const;  // where the bytes came from
  // kTimeout when the lease has expired.
  [[nodiscard]] Result<Buffer> bytes() const;
  [[nodiscard]] Result<void> Check() const;
  // A heartbeat: lasts `lease_us` from now. kTimeout when it has expired already.
  Result<void> Renew(int64_t lease_us);
  [[nodiscard]] int64_t expires_us() const;

 private:
  friend class LeaseBook;
  struct State;
  explicit ReadLease(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;  // null = moved from
};

// What is out on lease, so that the bytes of leases that nobody gives back come back. Thread-safe.
class LeaseBook {
 public:
  // `clock` outlives the book and its leases.
  explicit LeaseBook(const Clock& clock) : clock_(clock) {}

  ReadLease Grant(Object object, TierKind tier, int64_t lease_us) KVIK_EXCLUDES(mutex_);
  // Lets go of the bytes of expired leases; returns how many expired since the last call.
  int64_t Sweep() KVIK_EXCLUDES(mutex_);

 private:
  const Clock& clock_;
  Mutex mutex_;
  std::list<std::weak_ptr<ReadLease::State>> leases_ KVIK_GUARDED_BY(mutex_);
};

}  // namespace kvik::store
