// SPDX-License-Identifier: Apache-2.0
#include "attention/kernels.h"
#include "base/simd/scalar.h"
// After the ISA it is compiled for.
#include "attention/kernels_inl.h"

namespace kvik::attention {
const Kernels kKernelsScalar = KernelSet<simd::ScalarIsa>::kTable;
}  // namespace kvik::attention
