// SPDX-License-Identifier: Apache-2.0
// codec/kernels/quant_kernels.h: the inner loops of the quantizers, compiled once per ISA from
// quant_inl.h. Internal to codec. Results are the same bits on every ISA.
//
// Arrays of ranges (lo, hi, step, inv, ... one entry a group) have room for a multiple of 16
// entries; what the kernels write beyond the last one is of no meaning. Rows of values are exact.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/float16.h"
#include "base/isa.h"

namespace kvik::codec {

// What the entropy-constrained quantizer does with the channels of a class (codec/ecsq_classes.h),
// an entry a class. All but `limit` in steps.
struct EcsqTables {
  float theta[32];  // how far the boundaries between symbols are moved outwards, in [0, 0.5)
  float limit[32];  // alphabet / 2: symbol limit - 1 is 0, symbol 2 * limit - 1 the escape
  float slope[32];  // magnitude m >= 1 is reconstructed as m * slope + offset
  float offset[32];
};

struct QuantKernels {
  // x is [rows, channels] throughout.

  // Smallest and largest value of every channel. REQUIRES: rows > 0.
  void (*column_range)(const float* x, size_t rows, size_t channels, float* lo, float* hi);
  // ... of every group of `group` channels (the last may be smaller) of every row:
  // lo, hi [rows, groups].
  void (*row_range)(const float* x, size_t rows, size_t channels, size_t group, float* lo,
                    float* hi);
  // The range becomes that of both.
  void (*merge_range)(float* lo, float* hi, const float* other_lo, const float* other_hi, size_t n);
  // Widens ranges to halves: lo rounded down, hi up. Symmetric: to [-m, m], m rounded up.
  // Returns false when one overflows a half.
  bool (*round_range)(bool symmetric, float* lo, float* hi, size_t n);
  void (*to_halves)(const float* x, size_t n, F16* out);
  // out has room for a multiple of 16. Returns false when a value is not finite.
  bool (*from_halves)(const F16* x, size_t n, float* out);
  // step = (hi - lo) / (levels - 1), inv = (levels - 1) / (hi - lo), or 0 when lo >= hi.
  void (*grid)(const float* lo, const float* hi, size_t n, float levels, float* step, float* inv);

  // symbol = round((x - lo) * inv); a range a channel, or a group of channels of a row.
  void (*quantize_columns)(const float* x, size_t rows, size_t channels, const float* lo,
                           const float* inv, uint8_t* symbols);
  void (*quantize_rows)(const float* x, size_t rows, size_t channels, size_t group, const float* lo,
                        const float* inv, uint8_t* symbols);
  // x = lo + symbol * step
  void (*dequantize_columns)(const uint8_t* symbols, size_t rows, size_t channels, const float* lo,
                             const float* step, float* x);
  void (*dequantize_rows)(const uint8_t* symbols, size_t rows, size_t channels, size_t group,
                          const float* lo, const float* step, float* x);

  // e4m3 of x * inv, saturating: exponents in [0, 16), sign * 8 + mantissa in [0, 16).
  void (*fp8_columns)(const float* x, size_t rows, size_t channels, const float* inv,
                      uint8_t* exponents, uint8_t* rest);
  void (*fp8_rows)(const float* x, size_t rows, size_t channels, size_t group, const float* inv,
                   uint8_t* exponents, uint8_t* rest);
  void (*unfp8_columns)(const uint8_t* exponents, const uint8_t* rest, size_t rows, size_t channels,
                        const float* scale, float* x);
  void (*unfp8_rows)(const uint8_t* exponents, const uint8_t* rest, size_t rows, size_t channels,
                     size_t group, const float* scale, float* x);

  // bf16(x) as exponents and sign * 128 + mantissa; and back.
  void (*split_bf16)(const float* x, size_t n, uint8_t* exponents, uint8_t* rest);
  void (*merge_bf16)(const uint8_t* exponents, const uint8_t* rest, size_t n, float* x);

  // sums[c] = sum of squares of channel c, rows ascending.
  void (*column_squares)(const float* x, size_t rows, size_t channels, float* sums);
  // Symbols of channel c go to symbols[c][0..rows). q = x * inv moved by theta towards 0, rounded;
  // symbol = q + limit - 1, or the escape where that is outside [0, escape). classes[c] < 32.
  void (*ecsq_quantize)(const float* x, size_t rows, size_t channels, float inv,
                        const EcsqTables& tables, const uint8_t* classes, uint8_t* const* symbols);
  // The reverse; escapes give any finite value.
  void (*ecsq_dequantize)(const uint8_t* const* symbols, size_t rows, size_t channels, float step,
                          const EcsqTables& tables, const uint8_t* classes, float* x);
};

// The kernels of an ISA. REQUIRES: IsaSupported(isa).
const QuantKernels& QuantKernelsOf(Isa isa);

extern const QuantKernels kQuantScalar;
extern const QuantKernels kQuantAvx2;
extern const QuantKernels kQuantAvx512;

}  // namespace kvik::codec
