// SPDX-License-Identifier: Apache-2.0
#include "base/simd/avx512.h"
#include "tensor/row_inl.h"

namespace kvik::tensor {
extern constinit const RowKernels kRowAvx512 = RowOps<simd::Avx512Isa>::kKernels;
}  // namespace kvik::tensor
