// SPDX-License-Identifier: Apache-2.0
// base/thread_pool.h: data-parallel loops for kernels. No OpenMP: its spinning barriers stall for
// a scheduler quantum when cores are shared.
#pragma once

#include <cstddef>
#include <memory>
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

  // Runs fn(index, thread) for every index in [0, n), thread in [0, num_threads()). Indices are
  // taken dynamically in ascending order; returns when all are done. A result must not depend on
  // which thread ran an index. fn must not throw.
  template <typename Fn>
  void ParallelFor(size_t n, Fn&& fn) {
    using F = std::remove_reference_t<Fn>;
    Run(
        n,
        [](void* context, size_t index, int thread) { (*static_cast<F*>(context))(index, thread); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  using Task = void (*)(void* context, size_t index, int thread);
  void Run(size_t n, Task task, void* context);

  struct State;
  int num_threads_;
  std::unique_ptr<State> state_;
};

}  // namespace kvik
