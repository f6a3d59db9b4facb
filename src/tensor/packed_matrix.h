// SPDX-License-Identifier: Apache-2.0
// tensor/packed_matrix.h: a weight matrix [n outputs, k inputs] laid out for the kernels.
//
// Weights stay quantised: a packed matrix has about as many bytes as the file. Sixteen outputs
// form a panel, one per vector lane; within a panel k ascends, so one accumulator per output sums
// in one order whatever the number of input rows is. packed_layout.h has the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/aligned_buffer.h"
#include "base/huge_page_arena.h"
#include "base/isa.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "tensor/weight_format.h"

namespace kvik::tensor {

// A matrix as it is stored in a file: [rows, cols], row-major, rows of WeightRowBytes(format, cols)
// bytes. Borrowed for the call.
struct WeightView {
  WeightFormat format = WeightFormat::kF32;
  size_t rows = 0;
  size_t cols = 0;
  std::span<const std::byte> data;
  // Output i is row row_order[i]; empty = in order. Any permutation (or selection) of rows: its
  // size is then the number of outputs.
  std::span<const uint32_t> row_order = {};
};

// Immutable after Pack; readable by any number of threads. Movable, then only to be assigned to.
class PackedMatrix {
 public:
  PackedMatrix() = default;  // 0 x 0; only to be assigned to

  // Lays out `weights` for kernels of `compute`, in parallel over `pool`. kInvalidInput: the sizes
  // do not fit together (data size, cols not a multiple of the format's block, a row out of
  // range). kExhausted: not enough memory.
  //
  // kF32 keeps every value exactly: products use DequantizeRow's floats. kBf16 uses these rounded
  // to bf16; F32 and F16 weights are stored as bf16 then.
  //
  // The bytes lie in `arena`, which must outlive the matrix.
  static Result<PackedMatrix> Pack(const WeightView& weights, ComputeType compute, ThreadPool& pool,
                                   HugePageArena& arena);
  // As above, with memory of its own.
  static Result<PackedMatrix> Pack(const WeightView& weights, ComputeType compute,
                                   ThreadPool& pool);

  [[nodiscard]] size_t n() const { return n_; }
  [[nodiscard]] size_t k() const { return k_; }
  [[nodiscard]] WeightFormat format() const { return format_; }
  [[nodiscard]] ComputeType compute() const { return compute_; }
  [[nodiscard]] size_t size_bytes() const { return bytes_.size(); }

  // Decodes output `row` into out[k] (an embedding lookup in tied weights): DequantizeRow's values
  // except that F32 and F16 weights packed for kBf16 come back rounded to bf16.
  // REQUIRES: row < n().
  void ReadRow(size_t row, float* out) const;

  // For the kernels: packed_layout.h.
  [[nodiscard]] const std::byte* data() const { return bytes_.data(); }

 private:
  static Result<PackedMatrix> PackInto(const WeightView& weights, ComputeType compute,
                                       ThreadPool& pool, HugePageArena* arena);

  size_t n_ = 0;
  size_t k_ = 0;
  WeightFormat format_ = WeightFormat::kF32;
  ComputeType compute_ = ComputeType::kF32;
  std::span<std::byte> bytes_;  // in own_ or in an arena
  AlignedBuffer own_;
};

}  // namespace kvik::tensor
