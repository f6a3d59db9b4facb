// SPDX-License-Identifier: Apache-2.0
#include "base/machine_peak_inl.h"
#include "base/simd/avx512bf16.h"

namespace kvik {
const PeakLoops kPeakLoopsAvx512Bf16 = PeakLoopsOf<simd::Avx512Bf16Isa>::kLoops;
}  // namespace kvik
