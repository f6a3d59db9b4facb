// SPDX-License-Identifier: Apache-2.0
#include "attention/kernels.h"
#include "base/simd/avx512bf16.h"
// After the ISA it is compiled for.
#include "attention/kernels_inl.h"

namespace kvik::attention {
const Kernels kKernelsAvx512Bf16 = KernelSet<simd::Avx512Bf16Isa>::kTable;
}  // namespace kvik::attention
