// SPDX-License-Identifier: Apache-2.0
// tensor/context.h: where tensor functions run: instruction set, arithmetic, threads, scratch.
#pragma once

#include <cstddef>

#include "base/aligned_buffer.h"
#include "base/isa.h"
#include "base/result.h"
#include "base/thread_pool.h"

namespace kvik::tensor {

struct Kernels;

// One thread at a time uses a context (it drives the thread pool). Movable.
class Context {
 public:
  // `pool` must outlive the context. kUnsupported: this CPU lacks `isa`, or `isa` lacks `compute`.
  static Result<Context> Create(Isa isa, ComputeType compute, ThreadPool& pool);

  [[nodiscard]] Isa isa() const { return isa_; }
  [[nodiscard]] ComputeType compute() const { return compute_; }
  [[nodiscard]] ThreadPool& pool() const { return *pool_; }

  // For the functions of this module.
  [[nodiscard]] const Kernels& kernels() const { return *kernels_; }
  [[nodiscard]] std::byte* scratch(int thread) const;  // 64-byte aligned, kScratchBytes

 private:
  Context() = default;

  Isa isa_ = Isa::kScalar;
  ComputeType compute_ = ComputeType::kF32;
  ThreadPool* pool_ = nullptr;
  const Kernels* kernels_ = nullptr;
  mutable AlignedBuffer scratch_;  // [threads][kScratchBytes]; the kernels write it
};

}  // namespace kvik::tensor
