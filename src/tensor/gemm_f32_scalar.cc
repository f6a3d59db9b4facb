// SPDX-License-Identifier: Apache-2.0
#include "base/simd/scalar.h"
#include "tensor/gemm_inl.h"

namespace kvik::tensor {
extern constinit const GemmKernels kGemmF32Scalar =
    MakeGemmKernels<simd::ScalarIsa, ComputeType::kF32>();
}  // namespace kvik::tensor
