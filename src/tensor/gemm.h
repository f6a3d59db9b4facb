// SPDX-License-Identifier: Apache-2.0
// tensor/gemm.h: out[m, n] = x[m, k] * W[n, k]^T + bias[n].
//
// One fixed summation order per output: a single float32 accumulator, k ascending, fused
// multiply-adds (kF32) or bf16 pair products, pairs ascending (kBf16); the bias is added last. So
// a row's result does not depend on the other rows, their number, the thread count or whether the
// weights were stored quantised or as their float32 values; and kF32 is the same on every ISA.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "base/aligned_buffer.h"
#include "base/result.h"
#include "tensor/context.h"
#include "tensor/packed_matrix.h"

namespace kvik::tensor {

// The left operand [rows, k] in the form the kernels read, converted once for all matrices that
// share it (q, k, v; gate, up). Reusable; owns its memory. Thread-compatible.
class PackedActivations {
 public:
  PackedActivations() = default;  // holds 0 rows

  // Room for `max_rows` rows of `max_k` values. kExhausted when the system refuses.
  static Result<PackedActivations> Create(ComputeType compute, size_t max_rows, size_t max_k);

  // Takes x [rows, k] with row stride `ld` (floats). kBf16 rounds and copies; kF32 may keep
  // pointing to x, which must stay unchanged until the last Gemm that reads it.
  // REQUIRES: rows <= max_rows, k <= max_k, ctx.compute() is Create's.
  void Pack(const Context& ctx, const float* x, size_t rows, size_t k, size_t ld);

  // As Pack, of rows that `make_row(row)` writes to x right before they are read, while they are in
  // the first-level cache. Called once a row, from any thread of the pool.
  template <typename Fn>
  void PackMade(const Context& ctx, const float* x, size_t rows, size_t k, size_t ld,
                const Fn& make_row) {
    Begin(ctx, x, rows, k, ld);
    constexpr size_t kMinValuesPerItem = 16384;
    const size_t rows_per_item = std::max<size_t>(1, kMinValuesPerItem / std::max<size_t>(k, 1));
    ctx.pool().ParallelFor((rows + rows_per_item - 1) / rows_per_item, [&](size_t item, int) {
      const size_t end = std::min(rows, (item + 1) * rows_per_item);
      for (size_t row = item * rows_per_item; row < end; ++row) {
        make_row(row);
        PackRow(ctx, x + row * ld, row);
      }
    });
  }

  [[nodiscard]] size_t rows() const { return rows_; }
  [[nodiscard]] size_t k() const { return k_; }

  // For the kernels: rows of float32 or bf16, zero beyond k up to a multiple of 8.
  [[nodiscard]] const void* data() const { return data_; }
  [[nodiscard]] size_t ld_values() const { return ld_values_; }

 private:
  void Begin(const Context& ctx, const float* x, size_t rows, size_t k, size_t ld);
  void PackRow(const Context& ctx, const float* from, size_t row);

  ComputeType compute_ = ComputeType::kF32;
  size_t max_rows_ = 0;
  size_t max_k_ = 0;
  size_t rows_ = 0;
  size_t k_ = 0;
  size_t ld_values_ = 0;
  bool borrowed_ = false;  // data_ is the caller's x
  const void* data_ = nullptr;
  AlignedBuffer bytes_;
};

// One product. `out` has x.rows() rows of weights->n() values with stride ld_out (floats).
struct GemmOutput {
  const PackedMatrix* weights = nullptr;
  const float* bias = nullptr;  // [n], or null
  float* out = nullptr;
  size_t ld_out = 0;
};

// Computes all products of one input in one parallel loop. REQUIRES: every weights->k() == x.k()
// and weights->compute() == ctx.compute(); outputs do not overlap each other or x.
void Gemm(const Context& ctx, const PackedActivations& x, std::span<const GemmOutput> outputs);

}  // namespace kvik::tensor
