// SPDX-License-Identifier: Apache-2.0
// codec/kernels/transform_kernels.h: what transforms do to rows, once per ISA. Internal to codec.
//
// Rows are [num_rows, n] float32, dense. Every function gives the same bits on every ISA; none
// allocates or keeps anything.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/isa.h"

namespace kvik::codec {

struct TransformKernels {
  // out[r][c] = rows[r][c] + addend[c]. `out` may overlap `rows` at a distance of whole rows.
  void (*add_row)(const float* rows, size_t num_rows, size_t n, const float* addend, float* out);
  // rows[r][c] *= factor[c]
  void (*scale_rows)(float* rows, size_t num_rows, size_t n, const float* factor);
  // sums[c] = rows[0][c] + rows[1][c] + ..., added in that order to 0
  void (*sum_rows)(const float* rows, size_t num_rows, size_t n, float* sums);

  // Turns channels i and i + half of row r by the angle with cos[r][i] and sin[r][i]; n = 2 half.
  void (*rotate)(float* rows, size_t num_rows, size_t half, const float* cos, const float* sin);
  void (*rotate_back)(float* rows, size_t num_rows, size_t half, const float* cos,
                      const float* sin);

  // Channels [0, n) of rows `stride` apart times the +-1 Hadamard matrix of size n, a power of two,
  // in the order of Sylvester: channel pairs 1 apart are combined first, then 2 apart, ... With
  // scale_first the channels are multiplied by `factor` before, else after.
  void (*hadamard)(float* rows, size_t num_rows, size_t stride, size_t n, const float* factor,
                   bool scale_first);

  // out[r][j] = sum over i of x[r][i] * matrix[i][j]: fused, i ascending, from 0. x [num_rows, k],
  // matrix [k, n], out [num_rows, n], apart.
  void (*multiply)(const float* x, size_t num_rows, size_t k, const float* matrix, size_t n,
                   float* out);

  // Largest |x[i]|; 0 when n is 0.
  float (*max_abs)(const float* x, size_t n);
  // codes[i] = x[i] / step to the nearest (even) integer, within [-127, 127], plus 128.
  // REQUIRES: step > 0, |x[i] / step| < 2^31.
  void (*encode_bytes)(const float* x, size_t n, float step, uint8_t* codes);
  // out[i] = (codes[i] - 128) * step
  void (*decode_bytes)(const uint8_t* codes, size_t n, float step, float* out);
};

// REQUIRES: isa is supported.
const TransformKernels& TransformKernelsOf(Isa isa);

extern const TransformKernels kTransformScalar;
extern const TransformKernels kTransformAvx2;
extern const TransformKernels kTransformAvx512;

}  // namespace kvik::codec
