// SPDX-License-Identifier: Apache-2.0
#include "store/events.h"

#include <algorithm>
#include <utility>

namespace kvik::store {

EventLog::EventLog(size_t capacity) : capacity_(capacity) { KVIK_CHECK(capacity > 0); }

void EventLog::OnEvent(BlockEvent event) {
  MutexLock lock(mutex_);
  event.sequence = ++last_;
  if (events_.size() == capacity_) {
    events_.pop_front();
  }
  events_.push_back(std::move(event));
}

EventLog::Batch EventLog::Since(uint64_t after, size_t limit) const {
  MutexLock lock(mutex_);
  Batch batch;
  const uint64_t first = last_ - events_.size() + 1;  // the oldest that is kept
  // A number from the future is of another log: that reader has to start over, too.
  batch.lost = after + 1 < first || after > last_;
  const size_t skip = batch.lost ? 0 : static_cast<size_t>(after + 1 - first);
  const size_t count = std::min(limit, events_.size() - skip);
  const auto begin = events_.begin() + static_cast<std::ptrdiff_t>(skip);
  batch.events.assign(begin, begin + static_cast<std::ptrdiff_t>(count));
  return batch;
}

}  // namespace kvik::store
