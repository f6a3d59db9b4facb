// SPDX-License-Identifier: Apache-2.0
#include "attention/kernels.h"
#include "base/simd/avx2.h"
// After the ISA it is compiled for.
#include "attention/kernels_inl.h"

namespace kvik::attention {
const Kernels kKernelsAvx2 = KernelSet<simd::Avx2Isa>::kTable;
}  // namespace kvik::attention
