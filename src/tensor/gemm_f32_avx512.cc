// SPDX-License-Identifier: Apache-2.0
#include "base/simd/avx512.h"
#include "tensor/gemm_inl.h"

namespace kvik::tensor {
extern constinit const GemmKernels kGemmF32Avx512 =
    MakeGemmKernels<simd::Avx512Isa, ComputeType::kF32>();
}  // namespace kvik::tensor
