// SPDX-License-Identifier: Apache-2.0
// base/bounded_queue.h: a first-in first-out queue between threads: how requests reach the engine
// thread and tokens leave it.
//
// Thread-safe for any number of producers and consumers. Items leave in the order in which they
// entered. Closing refuses new items and lets consumers drain the old ones, so that "stop new work,
// finish the old" needs no further flag.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"

namespace kvik {

// T is movable; copies are never made. The destructor must not run while a thread is inside.
template <typename T>
class BoundedQueue {
 public:
  // REQUIRES: capacity > 0.
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) { KVIK_CHECK(capacity > 0); }
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  // Waits while the queue is full. False when it is closed (before or while waiting); the item is
  // then dropped.
  bool Push(T item) KVIK_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      while (!closed_ && items_.size() >= capacity_) {
        not_full_.Wait(mutex_);
      }
      if (closed_) {
        return false;
      }
      items_.push_back(std::move(item));
    }
    not_empty_.NotifyOne();
    return true;
  }

  // Never waits. False when the queue is full or closed; `item` is then left as it was.
  bool TryPush(T& item) KVIK_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      if (closed_ || items_.size() >= capacity_) {
        return false;
      }
      items_.push_back(std::move(item));
    }
    not_empty_.NotifyOne();
    return true;
  }

  // Waits for an item; nullopt when the queue is closed and empty.
  std::optional<T> Pop() KVIK_EXCLUDES(mutex_) {
    std::optional<T> item;
    {
      MutexLock lock(mutex_);
      while (!closed_ && items_.empty()) {
        not_empty_.Wait(mutex_);
      }
      item = TakeFront();
    }
    not_full_.NotifyOne();
    return item;
  }

  // As Pop, but gives up after `timeout`: nullopt then, too (closed() tells the two apart).
  std::optional<T> PopFor(std::chrono::microseconds timeout) KVIK_EXCLUDES(mutex_) {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    std::optional<T> item;
    {
      MutexLock lock(mutex_);
      while (!closed_ && items_.empty()) {
        if (!not_empty_.WaitUntil(mutex_, deadline)) {
          break;
        }
      }
      item = TakeFront();
    }
    not_full_.NotifyOne();
    return item;
  }

  // Never waits; nullopt when empty.
  std::optional<T> TryPop() KVIK_EXCLUDES(mutex_) {
    std::optional<T> item;
    {
      MutexLock lock(mutex_);
      item = TakeFront();
    }
    not_full_.NotifyOne();
    return item;
  }

  // Everything that is there now, in order; never waits.
  std::vector<T> TakeAll() KVIK_EXCLUDES(mutex_) {
    std::deque<T> taken;
    {
      MutexLock lock(mutex_);
      taken.swap(items_);
    }
    not_full_.NotifyAll();
    return {std::make_move_iterator(taken.begin()), std::make_move_iterator(taken.end())};
  }

  // Refuses further items and wakes every waiter. Idempotent.
  void Close() KVIK_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      closed_ = true;
    }
    not_full_.NotifyAll();
    not_empty_.NotifyAll();
  }

  [[nodiscard]] bool closed() const KVIK_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return closed_;
  }
  [[nodiscard]] size_t size() const KVIK_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return items_.size();
  }
  [[nodiscard]] size_t capacity() const { return capacity_; }

 private:
  std::optional<T> TakeFront() KVIK_REQUIRES(mutex_) {
    if (items_.empty()) {
      return std::nullopt;
    }
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }

  const size_t capacity_;
  mutable Mutex mutex_;
  CondVar not_full_;
  CondVar not_empty_;
  std::deque<T> items_ KVIK_GUARDED_BY(mutex_);
  bool closed_ KVIK_GUARDED_BY(mutex_) = false;
};

}  // namespace kvik
