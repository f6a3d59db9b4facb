// SPDX-License-Identifier: Apache-2.0
// tensor/kernels.h: the functions that exist once per ISA, as tables. Internal to tensor.
//
// Each table is filled in the file of its ISA from one template source (gemm_inl.h, row_inl.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/float16.h"
#include "base/isa.h"
#include "tensor/packed_layout.h"

namespace kvik::tensor {

inline constexpr size_t kNumWeightFormats = sizeof(kAllWeightFormats) / sizeof(WeightFormat);

// Rows times some panels of one group.
struct GroupProduct {
  const std::byte* group = nullptr;  // the group's first byte
  size_t group_panels = 0;           // panels it consists of, 1..4
  size_t panel_begin = 0;            // panels to compute, of the group
  size_t panel_end = 0;
  size_t outputs = 0;  // valid outputs in the group: the last panel may be partial
  size_t k = 0;        // inputs, a multiple of 8

  const void* x = nullptr;  // [rows, k], float or Bf16
  size_t ld_x = 0;          // values
  size_t rows = 0;

  const float* bias = nullptr;  // of the group's first output, or null
  float* out = nullptr;         // row 0, the group's first output
  size_t ld_out = 0;

  std::byte* scratch = nullptr;  // kScratchBytes, 64-byte aligned, of the calling thread
};

// A group's unpacked weights for as many inputs as stay in the first-level cache beside a tile of
// activations: 128 float32 or 256 bf16 inputs of 64 outputs.
inline constexpr size_t kScratchBytes = size_t{32} << 10;

struct GemmKernels {
  using Fn = void (*)(const GroupProduct&);
  Fn few_rows[kNumWeightFormats];   // unpacks in registers; rows <= max_few_rows
  Fn many_rows[kNumWeightFormats];  // unpacks into scratch once for all rows
  size_t max_few_rows;
  size_t row_tile;  // rows a micro-kernel computes at once
};

// One row each; contracts as in ops.h.
struct RowKernels {
  void (*rms_norm)(const float* x, const float* weight, size_t n, float eps, float* out);
  void (*rope)(float* x, size_t heads, size_t half, const float* cos, const float* sin);
  void (*silu_mul)(const float* gate, const float* up, size_t n, float* out);
  void (*add)(const float* x, const float* y, size_t n, float* out);
  // Rounds to bf16 (subnormals to 0); pads with zeros up to a multiple of 8.
  void (*to_bf16)(const float* x, size_t n, Bf16* out);
};

struct Kernels {
  const GemmKernels* gemm;
  const RowKernels* row;
};

extern const GemmKernels kGemmF32Scalar;
extern const GemmKernels kGemmF32Avx2;
extern const GemmKernels kGemmF32Avx512;
extern const GemmKernels kGemmBf16Scalar;
extern const GemmKernels kGemmBf16Avx512Bf16;
extern const RowKernels kRowScalar;
extern const RowKernels kRowAvx2;
extern const RowKernels kRowAvx512;
extern const RowKernels kRowAvx512Bf16;

}  // namespace kvik::tensor
