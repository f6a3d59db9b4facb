// SPDX-License-Identifier: Apache-2.0
#include "base/simd/scalar.h"
#include "codec/kernels/transform_inl.h"

namespace kvik::codec {
extern constinit const TransformKernels kTransformScalar = TransformOps<simd::ScalarIsa>::kKernels;
}  // namespace kvik::codec
