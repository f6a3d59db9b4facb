// SPDX-License-Identifier: Apache-2.0
#include "base/simd/avx2.h"
#include "tensor/gemm_inl.h"

namespace kvik::tensor {
extern constinit const GemmKernels kGemmF32Avx2 =
    MakeGemmKernels<simd::Avx2Isa, ComputeType::kF32>();
}  // namespace kvik::tensor
