// SPDX-License-Identifier: Apache-2.0
#include "base/simd/avx2.h"
#include "codec/kernels/rows_inl.h"

namespace kvik::codec {
extern constinit const RowsKernels kRowsAvx2 = RowsOps<simd::Avx2Isa>::kKernels;
}  // namespace kvik::codec
