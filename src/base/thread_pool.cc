// SPDX-License-Identifier: Apache-2.0
// Every thread has a slot, alone in its cache line, with what it needs to start: the loop's number,
// its function, the thread's own range. Waking a thread and taking the next index of one's own
// range thus move no line that another thread writes; only a thief touches its victim's slot.
// Cores of one machine may be hundreds of nanoseconds apart, and a forward pass has hundreds of
// loops.
//
// Workers spin briefly for the next loop, then sleep on a futex. The spin is short so that a
// descheduled peer costs little.
#include "base/thread_pool.h"

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/check.h"

namespace kvik {
namespace {

constexpr int kSpinIterations = 4000;  // about 50-100 us with pause

void CpuRelax() { __builtin_ia32_pause(); }

}  // namespace

struct ThreadPool::State {
  // Written by the driver before any `epoch` is released, read by workers after they acquire
  // theirs.
  struct alignas(64) Slot {
    std::atomic<uint32_t> epoch{0};  // of the loop; not used by the driver's own slot
    std::atomic<size_t> next{0};     // of the thread's own range
    size_t end = 0;
    Task task = nullptr;
    void* context = nullptr;
  };

  explicit State(int num_threads) : slots(static_cast<size_t>(num_threads)) {}

  std::vector<Slot> slots;
  alignas(64) std::atomic<int> busy{0};  // workers that have not yet finished this loop
  std::atomic<bool> stop{false};
  std::vector<std::thread> workers;

  // Its own range, then what others have not started.
  void Drain(size_t thread) {
    const size_t num_threads = slots.size();
    for (size_t i = 0; i < num_threads; ++i) {
      Slot& slot = slots[(thread + i) % num_threads];
      while (slot.next.load(std::memory_order_relaxed) < slot.end) {
        const size_t index = slot.next.fetch_add(1, std::memory_order_relaxed);
        if (index >= slot.end) {
          break;
        }
        slot.task(slot.context, index, static_cast<int>(thread));
      }
    }
  }

  void WorkerLoop(size_t thread) {
    Slot& slot = slots[thread];
    uint32_t seen = 0;
    for (;;) {
      int spins = 0;
      while (slot.epoch.load(std::memory_order_acquire) == seen) {
        if (++spins < kSpinIterations) {
          CpuRelax();
        } else {
          slot.epoch.wait(seen, std::memory_order_acquire);
        }
      }
      seen = slot.epoch.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_relaxed)) {
        return;
      }
      Drain(thread);
      if (busy.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        busy.notify_one();
      }
    }
  }

  void WakeWorkers() {
    for (size_t i = 1; i < slots.size(); ++i) {
      slots[i].epoch.fetch_add(1, std::memory_order_release);
      slots[i].epoch.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(num_threads), state_(std::make_unique<State>(num_threads)) {
  KVIK_CHECK(num_threads >= 1);
  for (int i = 1; i < num_threads; ++i) {
    state_->workers.emplace_back([this, i] { state_->WorkerLoop(static_cast<size_t>(i)); });
  }
}

ThreadPool::~ThreadPool() {
  state_->stop = true;
  state_->WakeWorkers();
  for (std::thread& worker : state_->workers) {
    worker.join();
  }
}

void ThreadPool::Run(size_t n, std::span<const size_t> ends, Task task, void* context) {
  KVIK_CHECK(ends.empty() ||
             (ends.size() == static_cast<size_t>(num_threads_) && ends.back() == n));
  if (n == 0) {
    return;
  }
  if (num_threads_ == 1 || n == 1) {
    for (size_t i = 0; i < n; ++i) {
      task(context, i, 0);
    }
    return;
  }
  State& s = *state_;
  const size_t num_threads = s.slots.size();
  size_t begin = 0;
  for (size_t i = 0; i < num_threads; ++i) {
    State::Slot& slot = s.slots[i];
    slot.next.store(begin, std::memory_order_relaxed);
    slot.end = ends.empty() ? n * (i + 1) / num_threads : ends[i];
    KVIK_CHECK(slot.end >= begin);
    begin = slot.end;
    slot.task = task;
    slot.context = context;
  }
  s.busy.store(num_threads_ - 1, std::memory_order_relaxed);
  s.WakeWorkers();
  s.Drain(0);
  int spins = 0;
  for (int busy = s.busy.load(std::memory_order_acquire); busy != 0;
       busy = s.busy.load(std::memory_order_acquire)) {
    if (++spins < kSpinIterations) {
      CpuRelax();
    } else {
      s.busy.wait(busy, std::memory_order_acquire);
    }
  }
}

}  // namespace kvik
