// SPDX-License-Identifier: Apache-2.0
#include "base/simd/avx512.h"
#include "codec/kernels/transform_inl.h"

namespace kvik::codec {
extern constinit const TransformKernels kTransformAvx512 = TransformOps<simd::Avx512Isa>::kKernels;
}  // namespace kvik::codec
