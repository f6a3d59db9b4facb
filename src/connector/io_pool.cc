// SPDX-License-Identifier: Apache-2.0
#include "connector/io_pool.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "base/thread_priority.h"

namespace kvik::connector {
namespace {

constexpr int64_t kNothingTimed = std::numeric_limits<int64_t>::max();
// A clock that is not the system's may jump: look at it now and then.
constexpr int64_t kLongestNapUs = 1'000'000;

}  // namespace

IoPool::IoPool(int num_threads, const Clock& clock, IoPriority priority)
    : num_threads_(num_threads), clock_(clock) {
  threads_.reserve(static_cast<size_t>(num_threads));
  for (int i = 0; i < num_threads; ++i) {
    threads_.emplace_back([this, priority] {
      if (priority == IoPriority::kYielding) {
        YieldToOtherThreads();
      }
      Work();
    });
  }
}

IoPool::~IoPool() { Stop(); }

bool IoPool::Post(Task task) {
  {
    MutexLock lock(mutex_);
    if (stopped_) {
      return false;
    }
    tasks_.push_back(std::move(task));
  }
  Wake();
  return true;
}

bool IoPool::PostAt(int64_t time_us, Task task) {
  {
    MutexLock lock(mutex_);
    if (stopped_) {
      return false;
    }
    timed_.emplace(time_us, std::move(task));
  }
  Wake();
  return true;
}

int64_t IoPool::TakeDue() {
  const int64_t now = clock_.NowMicros();
  while (!timed_.empty() && timed_.begin()->first <= now) {
    tasks_.push_back(std::move(timed_.begin()->second));
    timed_.erase(timed_.begin());
  }
  return timed_.empty() ? kNothingTimed : timed_.begin()->first;
}

std::optional<IoPool::Task> IoPool::Next() {
  if (tasks_.empty()) {
    return std::nullopt;
  }
  std::optional<Task> task(std::move(tasks_.front()));
  tasks_.pop_front();
  return task;
}

bool IoPool::RunDue() {
  std::optional<Task> task;
  {
    MutexLock lock(mutex_);
    TakeDue();
    task = Next();
  }
  if (!task.has_value()) {
    return false;
  }
  (*task)();
  return true;
}

void IoPool::Wake() {
  char item = 0;
  (void)wake_.TryPush(item);  // full: whoever comes to wait is woken at once anyway
}

void IoPool::Work() {
  for (;;) {
    std::optional<Task> task;
    int64_t next = kNothingTimed;
    bool stopped = false;
    {
      MutexLock lock(mutex_);
      next = TakeDue();
      task = Next();
      stopped = stopped_;
    }
    if (task.has_value()) {
      (*task)();
    } else if (stopped) {
      return;
    } else if (next == kNothingTimed) {
      (void)wake_.Pop();
    } else {
      (void)wake_.PopFor(std::chrono::microseconds(
          std::clamp<int64_t>(next - clock_.NowMicros(), 0, kLongestNapUs)));
    }
  }
}

void IoPool::Stop() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    timed_.clear();
  }
  wake_.Close();
  threads_.clear();  // joins
  while (RunDue()) {
  }
}

}  // namespace kvik::connector
