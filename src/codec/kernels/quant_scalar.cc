// SPDX-License-Identifier: Apache-2.0
#include "base/simd/scalar.h"
#include "codec/kernels/quant_inl.h"

namespace kvik::codec {
extern constinit const QuantKernels kQuantScalar = QuantOps<simd::ScalarIsa>::kKernels;
}  // namespace kvik::codec
