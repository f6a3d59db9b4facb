// SPDX-License-Identifier: Apache-2.0
#include "base/simd/scalar.h"
#include "codec/kernels/rows_inl.h"

namespace kvik::codec {
extern constinit const RowsKernels kRowsScalar = RowsOps<simd::ScalarIsa>::kKernels;
}  // namespace kvik::codec
