// SPDX-License-Identifier: Apache-2.0
#include "base/simd/scalar.h"
#include "base/simd/simd_probe_inl.h"

namespace kvik::simd {
const Probe kProbeScalar = ProbeBody<ScalarIsa>::kProbe;
}  // namespace kvik::simd
