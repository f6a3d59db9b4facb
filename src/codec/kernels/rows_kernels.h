// SPDX-License-Identifier: Apache-2.0
// codec/kernels/rows_kernels.h: bf16 rows to float32 and back, once per ISA. Internal to codec.
// Every function gives the same bits on every ISA.
#pragma once

#include <cstddef>

#include "base/float16.h"
#include "base/isa.h"

namespace kvik::codec {

struct RowsKernels {
  // Whether |in[i]| <= limit for all i; a NaN is not.
  bool (*all_within)(const Bf16* in, size_t n, float limit);
  void (*widen)(const Bf16* in, size_t n, float* out);
  // kvik::ToBf16 of each.
  void (*round)(const float* in, size_t n, Bf16* out);
  // The same around the caches, for rows that are not read again soon. Other threads may look after
  // fence().
  void (*round_streaming)(const float* in, size_t n, Bf16* out);
  void (*fence)();
};

// REQUIRES: isa is supported.
const RowsKernels& RowsKernelsOf(Isa isa);

extern const RowsKernels kRowsScalar;
extern const RowsKernels kRowsAvx2;
extern const RowsKernels kRowsAvx512;

}  // namespace kvik::codec
