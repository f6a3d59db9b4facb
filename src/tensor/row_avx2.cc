// SPDX-License-Identifier: Apache-2.0
#include "base/simd/avx2.h"
#include "tensor/row_inl.h"

namespace kvik::tensor {
extern constinit const RowKernels kRowAvx2 = RowOps<simd::Avx2Isa>::kKernels;
}  // namespace kvik::tensor
