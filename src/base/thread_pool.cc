// SPDX-License-Identifier: Apache-2.0
// Workers spin briefly for the next loop, since a forward pass issues hundreds of loops a few tens
// of microseconds apart, then sleep on a futex. The spin is short so that a descheduled peer costs
// little. A loop is published by bumping `epoch`; its tasks are taken by fetch_add on `next`.
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
  // Written by the driver before `epoch` is released, read by workers after it is acquired.
  Task task = nullptr;
  void* context = nullptr;
  size_t count = 0;

  alignas(64) std::atomic<uint32_t> epoch{0};
  alignas(64) std::atomic<size_t> next{0};
  alignas(64) std::atomic<int> busy{0};  // workers that have not yet finished this epoch
  std::atomic<bool> stop{false};
  std::vector<std::thread> workers;

  void Drain(int thread) {
    for (;;) {
      const size_t index = next.fetch_add(1, std::memory_order_relaxed);
      if (index >= count) {
        return;
      }
      task(context, index, thread);
    }
  }

  void WorkerLoop(int thread) {
    uint32_t seen = 0;
    for (;;) {
      int spins = 0;
      while (epoch.load(std::memory_order_acquire) == seen) {
        if (++spins < kSpinIterations) {
          CpuRelax();
        } else {
          epoch.wait(seen, std::memory_order_acquire);
        }
      }
      seen = epoch.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_relaxed)) {
        return;
      }
      Drain(thread);
      if (busy.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        busy.notify_one();
      }
    }
  }
};

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(num_threads), state_(std::make_unique<State>()) {
  KVIK_CHECK(num_threads >= 1);
  for (int i = 1; i < num_threads; ++i) {
    state_->workers.emplace_back([this, i] { state_->WorkerLoop(i); });
  }
}

ThreadPool::~ThreadPool() {
  state_->stop = true;
  state_->epoch.fetch_add(1, std::memory_order_release);
  state_->epoch.notify_all();
  for (std::thread& worker : state_->workers) {
    worker.join();
  }
}

void ThreadPool::Run(size_t n, Task task, void* context) {
  if (n == 0) {
    return;
  }
  State& s = *state_;
  if (num_threads_ == 1 || n == 1) {
    for (size_t i = 0; i < n; ++i) {
      task(context, i, 0);
    }
    return;
  }
  s.task = task;
  s.context = context;
  s.count = n;
  s.next.store(0, std::memory_order_relaxed);
  s.busy.store(num_threads_ - 1, std::memory_order_relaxed);
  s.epoch.fetch_add(1, std::memory_order_release);
  s.epoch.notify_all();
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
