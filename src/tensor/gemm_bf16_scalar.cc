// SPDX-License-Identifier: Apache-2.0
#include "base/simd/scalar.h"
#include "tensor/gemm_inl.h"

namespace kvik::tensor {
extern constinit const GemmKernels kGemmBf16Scalar =
    MakeGemmKernels<simd::ScalarIsa, ComputeType::kBf16>();
}  // namespace kvik::tensor
