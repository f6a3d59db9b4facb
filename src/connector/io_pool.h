// SPDX-License-Identifier: Apache-2.0
// connector/io_pool.h: a few threads for encoding, decoding and blocking reads, and a timer.
//
// Thread-safe. Tasks must not throw and must not wait for other tasks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace kvik::connector {

// kYielding: threads take only what the engine's leave of the cores (base/thread_priority.h).
enum class IoPriority { kUsual, kYielding };

class IoPool {
 public:
  using Task = std::function<void()>;

  // `num_threads` 0: tasks run when somebody calls RunDue, for tests with a manual clock. `clock`
  // outlives the pool.
  IoPool(int num_threads, const Clock& clock, IoPriority priority = IoPriority::kUsual);
  ~IoPool();  // as Stop
  IoPool(const IoPool&) = delete;
  IoPool& operator=(const IoPool&) = delete;

  // First in, first out. After Stop the task is dropped: false.
  bool Post(Task task) KVIK_EXCLUDES(mutex_);
  // Not before the clock says `time_us`. Dropped by Stop.
  bool PostAt(int64_t time_us, Task task) KVIK_EXCLUDES(mutex_);

  // Without threads: runs one task that is due; false when there is none.
  bool RunDue() KVIK_EXCLUDES(mutex_);

  // Runs what was posted and not timed, then ends the threads. Not for a thread of the pool.
  void Stop() KVIK_EXCLUDES(mutex_);

  [[nodiscard]] int num_threads() const { return num_threads_; }

 private:
  void Work() KVIK_EXCLUDES(mutex_);
  void Wake();
  [[nodiscard]] std::optional<Task> Next() KVIK_REQUIRES(mutex_);
  // Moves timed tasks that are due to the queue; the time of the next one or INT64_MAX.
  int64_t TakeDue() KVIK_REQUIRES(mutex_);

  const int num_threads_;
  const Clock& clock_;
  // One item for whatever was posted, unless there are many already: nobody sleeps over it.
  BoundedQueue<char> wake_{1024};
  Mutex mutex_;
  std::deque<Task> tasks_ KVIK_GUARDED_BY(mutex_);
  std::multimap<int64_t, Task> timed_ KVIK_GUARDED_BY(mutex_);
  bool stopped_ KVIK_GUARDED_BY(mutex_) = false;
  std::vector<std::jthread> threads_;
};

}  // namespace kvik::connector
