// SPDX-License-Identifier: Apache-2.0
#include "base/simd/avx512.h"
#include "codec/kernels/quant_inl.h"

namespace kvik::codec {
extern constinit const QuantKernels kQuantAvx512 = QuantOps<simd::Avx512Isa>::kKernels;
}  // namespace kvik::codec
