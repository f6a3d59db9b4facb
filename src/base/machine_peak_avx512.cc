// SPDX-License-Identifier: Apache-2.0
#include "base/machine_peak_inl.h"
#include "base/simd/avx512.h"

namespace kvik {
const PeakLoops kPeakLoopsAvx512 = PeakLoopsOf<simd::Avx512Isa>::kLoops;
}  // namespace kvik
