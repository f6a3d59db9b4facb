// SPDX-License-Identifier: Apache-2.0
#include "base/simd/avx512.h"
#include "base/simd/simd_probe_inl.h"

namespace kvik::simd {
const Probe kProbeAvx512 = ProbeBody<Avx512Isa>::kProbe;
}  // namespace kvik::simd
