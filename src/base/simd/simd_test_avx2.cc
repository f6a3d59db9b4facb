// SPDX-License-Identifier: Apache-2.0
#include "base/simd/avx2.h"
#include "base/simd/simd_probe_inl.h"

namespace kvik::simd {
const Probe kProbeAvx2 = ProbeBody<Avx2Isa>::kProbe;
}  // namespace kvik::simd
