// SPDX-License-Identifier: Apache-2.0
#include "base/simd/avx512bf16.h"
#include "tensor/row_inl.h"

namespace kvik::tensor {
extern constinit const RowKernels kRowAvx512Bf16 = RowOps<simd::Avx512Bf16Isa>::kKernels;
}  // namespace kvik::tensor
