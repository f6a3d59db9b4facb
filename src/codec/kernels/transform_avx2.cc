// SPDX-License-Identifier: Apache-2.0
#include "base/simd/avx2.h"
#include "codec/kernels/transform_inl.h"

namespace kvik::codec {
extern constinit const TransformKernels kTransformAvx2 = TransformOps<simd::Avx2Isa>::kKernels;
}  // namespace kvik::codec
