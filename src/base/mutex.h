// SPDX-License-Identifier: Apache-2.0
// base/mutex.h: std::mutex and std::condition_variable under clang's thread-safety annotations, so
// that the clang preset rejects an access to a guarded member without its lock. Locks exist at the
// edges only (queues, metrics, server, logging): kv, sched and workload have none.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#if defined(__clang__)
#define KVIK_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define KVIK_THREAD_ANNOTATION(x)
#endif

#define KVIK_CAPABILITY(name) KVIK_THREAD_ANNOTATION(capability(name))
#define KVIK_SCOPED_CAPABILITY KVIK_THREAD_ANNOTATION(scoped_lockable)
// On a member: reads and writes need the mutex.
#define KVIK_GUARDED_BY(mutex) KVIK_THREAD_ANNOTATION(guarded_by(mutex))
// On a function: the caller holds / must not hold the mutex.
#define KVIK_REQUIRES(...) KVIK_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define KVIK_EXCLUDES(...) KVIK_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define KVIK_ACQUIRE(...) KVIK_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define KVIK_RELEASE(...) KVIK_THREAD_ANNOTATION(release_capability(__VA_ARGS__))

namespace kvik {

// Not recursive. Thread-safe.
class KVIK_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() KVIK_ACQUIRE() { mutex_.lock(); }
  void Unlock() KVIK_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds the mutex for a scope.
class KVIK_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) KVIK_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() KVIK_RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Wakes may be spurious: wait in a loop over the condition, written at the call so that the
// analysis sees which members it reads.
class CondVar {
 public:
  // Releases `mutex`, sleeps until notified, takes `mutex` again.
  void Wait(Mutex& mutex) KVIK_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();  // the caller's MutexLock still owns it
  }
  // As Wait, for at most until `deadline`; false when the deadline passed.
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline)
      KVIK_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const std::cv_status status = condition_.wait_until(lock, deadline);
    lock.release();
    return status == std::cv_status::no_timeout;
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace kvik
