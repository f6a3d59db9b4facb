// SPDX-License-Identifier: Apache-2.0
#include "base/simd/avx512bf16.h"
#include "base/simd/simd_probe_inl.h"

namespace kvik::simd {
const Probe kProbeAvx512Bf16 = ProbeBody<Avx512Bf16Isa>::kProbe;
}  // namespace kvik::simd
