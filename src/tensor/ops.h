// SPDX-License-Identifier: Apache-2.0
// tensor/ops.h: the operations of a transformer between its matrix products, in float32.
//
// Every row is computed on its own in a fixed order: results do not depend on the batch, the
// thread count or the ISA. Matrices are row-major with a row stride `ld` in floats. Outputs may be
// the inputs unless said otherwise. All run in parallel over rows when there are enough.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/context.h"
#include "tensor/gemm.h"
#include "tensor/packed_matrix.h"

namespace kvik::tensor {

// out[r, :] = x[r, :] / sqrt(mean(x[r, :]^2) + eps) * weight. For a norm per head pass
// rows = tokens * heads and n = head_dim.
void RmsNorm(const Context& ctx, const float* x, size_t ld_x, size_t rows, size_t n,
             const float* weight, float eps, float* out, size_t ld_out);

// x += y if y is not null; then out = pack(RmsNorm(x)), in one pass over rows. `normed` [rows, n]
// is where the norm goes; out may keep pointing to it (PackedActivations::Pack).
void AddNormPack(const Context& ctx, float* x, const float* y, size_t rows, size_t n,
                 const float* weight, float eps, float* normed, PackedActivations& out);

// cos and sin of every position's rotation angles, [positions, half] each; scale factors included.
struct RopeTable {
  const float* cos = nullptr;
  const float* sin = nullptr;
  size_t half = 0;  // half the head dimension
};

// Rotates x [rows, heads, 2 * half] in place, half-split form: (a, b) = (x[i], x[i + half])
// becomes (a cos - b sin, b cos + a sin) at positions[row].
void ApplyRope(const Context& ctx, float* x, size_t ld_x, size_t rows, size_t heads,
               const RopeTable& table, const int32_t* positions);

// out = gate / (1 + e^-gate) * up over [rows, n].
void SiluMul(const Context& ctx, const float* gate, size_t ld_gate, const float* up, size_t ld_up,
             size_t rows, size_t n, float* out, size_t ld_out);

// gate = SiluMul(gate, up), then out = pack(gate), in one pass over rows [rows, n]; out may keep
// pointing to gate.
void SiluMulPack(const Context& ctx, float* gate, const float* up, size_t rows, size_t n,
                 PackedActivations& out);

// out = x + y over [rows, n].
void Add(const Context& ctx, const float* x, size_t ld_x, const float* y, size_t ld_y, size_t rows,
         size_t n, float* out, size_t ld_out);

// out[i, :] = row ids[i] of the table, [ids.size(), table.k()]. REQUIRES: ids in [0, table.n()).
void EmbeddingRows(const Context& ctx, const PackedMatrix& table, std::span<const int32_t> ids,
                   float* out, size_t ld_out);

}  // namespace kvik::tensor
