// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/planted_defect.h"
#include "tensor/kernels.h"

namespace kvik::tensor {
namespace {

// fn(row) for all rows; in parallel when a row range of worthwhile size leaves more than one item.
template <typename Fn>
void ForRows(const Context& ctx, size_t rows, size_t values_per_row, const Fn& fn) {
  constexpr size_t kMinValuesPerItem = 16384;
  const size_t rows_per_item =
      std::max<size_t>(1, kMinValuesPerItem / std::max<size_t>(values_per_row, 1));
  const size_t items = (rows + rows_per_item - 1) / rows_per_item;
  ctx.pool().ParallelFor(items, [&](size_t item, int) {
    const size_t end = std::min(rows, (item + 1) * rows_per_item);
    for (size_t row = item * rows_per_item; row < end; ++row) {
      fn(row);
    }
  });
}

// One row of `rows`, whose number changes nothing unless a defect is planted.
void NormRow(const RowKernels& kernels, [[maybe_unused]] size_t rows, const float* x,
             const float* weight, size_t n, float eps, float* out) {
  if (DefectPlanted(Defect::kMDependent) && rows >= 8) {
    float sum = 0;
    for (size_t i = n; i-- > 0;) {  // from the other end
      sum += x[i] * x[i];
    }
    const float scale = 1.0F / std::sqrt(sum / static_cast<float>(n) + eps);
    for (size_t i = 0; i < n; ++i) {
      out[i] = x[i] * scale * weight[i];
    }
    return;
  }
  kernels.rms_norm(x, weight, n, eps, out);
}

}  // namespace

void RmsNorm(const Context& ctx, const float* x, size_t ld_x, size_t rows, size_t n,
             const float* weight, float eps, float* out, size_t ld_out) {
  const RowKernels& kernels = *ctx.kernels().row;
  ForRows(ctx, rows, n, [&](size_t row) {
    NormRow(kernels, rows, x + row * ld_x, weight, n, eps, out + row * ld_out);
  });
}

void AddNormPack(const Context& ctx, float* x, const float* y, size_t rows, size_t n,
                 const float* weight, float eps, float* normed, PackedActivations& out) {
  const RowKernels& kernels = *ctx.kernels().row;
  out.PackMade(ctx, normed, rows, n, n, [&](size_t row) {
    float* x_row = x + row * n;
    if (y != nullptr) {
      kernels.add(x_row, y + row * n, n, x_row);
    }
    NormRow(kernels, rows, x_row, weight, n, eps, normed + row * n);
  });
}

void ApplyRope(const Context& ctx, float* x, size_t ld_x, size_t rows, size_t heads,
               const RopeTable& table, const int32_t* positions) {
  const RowKernels& kernels = *ctx.kernels().row;
  ForRows(ctx, rows, heads * table.half * 2, [&](size_t row) {
    const size_t offset = static_cast<size_t>(positions[row]) * table.half;
    kernels.rope(x + row * ld_x, heads, table.half, table.cos + offset, table.sin + offset);
  });
}

void SiluMul(const Context& ctx, const float* gate, size_t ld_gate, const float* up, size_t ld_up,
             size_t rows, size_t n, float* out, size_t ld_out) {
  const RowKernels& kernels = *ctx.kernels().row;
  ForRows(ctx, rows, n, [&](size_t row) {
    kernels.silu_mul(gate + row * ld_gate, up + row * ld_up, n, out + row * ld_out);
  });
}

void SiluMulPack(const Context& ctx, float* gate, const float* up, size_t rows, size_t n,
                 PackedActivations& out) {
  const RowKernels& kernels = *ctx.kernels().row;
  out.PackMade(ctx, gate, rows, n, n, [&](size_t row) {
    kernels.silu_mul(gate + row * n, up + row * n, n, gate + row * n);
  });
}

void Add(const Context& ctx, const float* x, size_t ld_x, const float* y, size_t ld_y, size_t rows,
         size_t n, float* out, size_t ld_out) {
  const RowKernels& kernels = *ctx.kernels().row;
  ForRows(ctx, rows, n,
          [&](size_t row) { kernels.add(x + row * ld_x, y + row * ld_y, n, out + row * ld_out); });
}

void EmbeddingRows(const Context& ctx, const PackedMatrix& table, std::span<const int32_t> ids,
                   float* out, size_t ld_out) {
  // Decoding one value at a time costs about as much as ten of the other operations' values.
  ForRows(ctx, ids.size(), 10 * table.k(),
          [&](size_t i) { table.ReadRow(static_cast<size_t>(ids[i]), out + i * ld_out); });
}

}  // namespace kvik::tensor
