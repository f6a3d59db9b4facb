// SPDX-License-Identifier: Apache-2.0
#include "base/simd/avx2.h"
#include "codec/kernels/quant_inl.h"

namespace kvik::codec {
extern constinit const QuantKernels kQuantAvx2 = QuantOps<simd::Avx2Isa>::kKernels;
}  // namespace kvik::codec
