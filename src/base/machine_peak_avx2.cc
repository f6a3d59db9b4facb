// SPDX-License-Identifier: Apache-2.0
#include "base/machine_peak_inl.h"
#include "base/simd/avx2.h"

namespace kvik {
const PeakLoops kPeakLoopsAvx2 = PeakLoopsOf<simd::Avx2Isa>::kLoops;
}  // namespace kvik
