// SPDX-License-Identifier: Apache-2.0
#include "base/simd/avx512bf16.h"
#include "tensor/gemm_inl.h"

namespace kvik::tensor {
extern constinit const GemmKernels kGemmBf16Avx512Bf16 =
    MakeGemmKernels<simd::Avx512Bf16Isa, ComputeType::kBf16>();
}  // namespace kvik::tensor
