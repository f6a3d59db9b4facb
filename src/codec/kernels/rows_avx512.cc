// SPDX-License-Identifier: Apache-2.0
#include "base/simd/avx512.h"
#include "codec/kernels/rows_inl.h"

namespace kvik::codec {
extern constinit const RowsKernels kRowsAvx512 = RowsOps<simd::Avx512Isa>::kKernels;
}  // namespace kvik::codec
