// SPDX-License-Identifier: Apache-2.0
// base/simd/simd_probe.h: runs every operation of the vector layer; tests compare ISAs with it.
// Included by simd_test_*.cc only (except the plain types, which simd_test.cc reads).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvik::simd {

struct ProbeInput {
  float a[16], b[16], c[16];
  uint16_t half[16];  // any bits
};

// What one run of all operations wrote: op i gave name[i] and 16 lanes of bits.
struct ProbeOutput {
  static constexpr int kMaxOps = 128;
  int num_ops = 0;
  const char* name[kMaxOps];
  uint32_t bits[kMaxOps][16];
};

struct Probe {
  void (*run)(const ProbeInput& in, ProbeOutput* out);
  // acc[i] += x[2i+1] * y[2i+1] + x[2i] * y[2i] as DotBf16 does it; null without bf16.
  void (*dot_bf16)(const float* acc, const uint16_t* x, const uint16_t* y, float* out);
  void (*exp)(const float* in, float* out);
  void (*exp2)(const float* in, float* out);
  void (*exp2_fast)(const float* in, float* out);
};

extern const Probe kProbeScalar;
extern const Probe kProbeAvx2;
extern const Probe kProbeAvx512;
extern const Probe kProbeAvx512Bf16;

}  // namespace kvik::simd
