// SPDX-License-Identifier: Apache-2.0
// base/thread_pool.h: data-parallel loops for kernels. No OpenMP: its spinning barriers stall for
// a scheduler quantum when cores are shared.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>

namespace kvik {

// One caller at a time drives the pool (the engine thread); nested calls are not allowed.
class ThreadPool {
 public:
  // `num_threads` >= 1 counts the calling thread, so ThreadPool(1) starts none.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int num_threads() const { return num_threads_; }

  // Runs fn(index, thread) for every index in [0, n), thread in [0, num_threads()); returns when
  // all are done. Thread t begins with the t-th of num_threads() equal ranges, in ascending order,
  // so loops over the same rows find them in the same core's cache; whoever is done takes from the
  // others. A result must not depend on which thread ran an index. fn must not throw.
  template <typename Fn>
  void ParallelFor(size_t n, Fn&& fn) {
    Run(n, {}, TaskOf<Fn>(), const_cast<void*>(static_cast<const void*>(&fn)));
  }

  // As above, but thread t begins with [ends[t - 1], ends[t]), where ends[-1] is 0.
  // REQUIRES: ends is ascending and has num_threads() values.
  template <typename Fn>
  void ParallelForRanges(std::span<const size_t> ends, Fn&& fn) {
    Run(ends.back(), ends, TaskOf<Fn>(), const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  using Task = void (*)(void* context, size_t index, int thread);
  template <typename Fn>
  static Task TaskOf() {
    return [](void* context, size_t index, int thread) {
      (*static_cast<std::remove_reference_t<Fn>*>(context))(index, thread);
    };
  }
  void Run(size_t n, std::span<const size_t> ends, Task task, void* context);

  struct State;
  int num_threads_;
  std::unique_ptr<State> state_;
};

}  // namespace kvik
