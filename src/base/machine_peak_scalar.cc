// SPDX-License-Identifier: Apache-2.0
#include "base/machine_peak_inl.h"
#include "base/simd/scalar.h"

namespace kvik {
const PeakLoops kPeakLoopsScalar = PeakLoopsOf<simd::ScalarIsa>::kLoops;
}  // namespace kvik
