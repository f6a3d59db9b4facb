// SPDX-License-Identifier: Apache-2.0
#include "store/read_lease.h"

#include <algorithm>
#include <limits>

namespace kvik::store {

struct ReadLease::State {
  explicit State(const Clock& the_clock) : clock(the_clock) {}

  [[nodiscard]] bool ExpiredLocked() const KVIK_REQUIRES(mutex) {
    return expired || clock.NowMicros() >= expires_us;
  }
  [[nodiscard]] static Error Expired() {
    return Err(ErrorCode::kTimeout, "the lease on an object has expired");
  }

  const Clock& clock;
  std::shared_ptr<const ObjectMeta> meta;
  TierKind tier = TierKind::kMemory;
  Mutex mutex;
  Buffer bytes KVIK_GUARDED_BY(mutex);
  int64_t expires_us KVIK_GUARDED_BY(mutex) = 0;
  // Once seen it stays, whatever the clock does.
  bool expired KVIK_GUARDED_BY(mutex) = false;
};

namespace {

int64_t EndOf(int64_t now_us, int64_t lease_us) {
  return lease_us > std::numeric_limits<int64_t>::max() - std::max<int64_t>(now_us, 0)
             ? std::numeric_limits<int64_t>::max()
             : now_us + lease_us;
}

}  // namespace

const ObjectMeta& ReadLease::meta() const { return *state_->meta; }

TierKind ReadLease::tier() const { return state_->tier; }

Result<Buffer> ReadLease::bytes() const {
  MutexLock lock(state_->mutex);
  if (state_->ExpiredLocked()) {
    return State::Expired();
  }
  return state_->bytes;
}

Result<void> ReadLease::Check() const {
  MutexLock lock(state_->mutex);
  if (state_->ExpiredLocked()) {
    return State::Expired();
  }
  return {};
}

Result<void> ReadLease::Renew(int64_t lease_us) {
  MutexLock lock(state_->mutex);
  if (state_->ExpiredLocked()) {
    return State::Expired();
  }
  state_->expires_us = EndOf(state_->clock.NowMicros(), lease_us);
  return {};
}

int64_t ReadLease::expires_us() const {
  MutexLock lock(state_->mutex);
  return state_->expires_us;
}

ReadLease LeaseBook::Grant(Object object, TierKind tier, int64_t lease_us) {
  auto state = std::make_shared<ReadLease::State>(clock_);
  state->meta = std::move(object.meta);
  state->tier = tier;
  {
    MutexLock lock(state->mutex);
    state->bytes = std::move(object.bytes);
    state->expires_us = EndOf(clock_.NowMicros(), lease_us);
  }
  MutexLock lock(mutex_);
  leases_.push_back(state);
  return ReadLease(std::move(state));
}

int64_t LeaseBook::Sweep() {
  // Bytes are let go after the locks are: freeing them takes as long as it takes.
  std::vector<Buffer> freed;
  int64_t expired = 0;
  MutexLock lock(mutex_);
  for (auto lease = leases_.begin(); lease != leases_.end();) {
    const auto state = lease->lock();
    bool done = state == nullptr;
    if (state != nullptr) {
      MutexLock state_lock(state->mutex);
      if (state->ExpiredLocked()) {
        state->expired = true;
        freed.push_back(std::move(state->bytes));
        ++expired;
        done = true;
      }
    }
    lease = done ? leases_.erase(lease) : std::next(lease);
  }
  return expired;
}

}  // namespace kvik::store
