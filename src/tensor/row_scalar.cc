// SPDX-License-Identifier: Apache-2.0
#include "base/simd/scalar.h"
#include "tensor/row_inl.h"

namespace kvik::tensor {
extern constinit const RowKernels kRowScalar = RowOps<simd::ScalarIsa>::kKernels;
}  // namespace kvik::tensor
