// SPDX-License-Identifier: Apache-2.0
// base/machine_peak_inl.h: the loops of machine_peak.h, compiled per ISA by machine_peak_*.cc.
#pragma once

#include <cstddef>

#include "base/simd/simd.h"

namespace kvik {

struct PeakLoops {
  // Run `iterations` times; return the operations done. `sink` [16] keeps the result alive.
  double (*f32)(size_t iterations, float* sink);
  double (*bf16)(size_t iterations, float* sink);  // null where there is no such arithmetic
  // Reads `floats` values, a multiple of 128.
  void (*read)(const float* data, size_t floats, float* sink);
};

extern const PeakLoops kPeakLoopsScalar;
extern const PeakLoops kPeakLoopsAvx2;
extern const PeakLoops kPeakLoopsAvx512;
extern const PeakLoops kPeakLoopsAvx512Bf16;

namespace {  // see base/simd/simd.h

template <class V>
struct PeakLoopsOf {
  using F32 = typename V::F32;
  // Enough independent chains to hide the latency of both instructions, and no spills.
  static constexpr int kChains = V::kNumRegisters >= 32 ? 16 : 6;

  static double RunF32(size_t iterations, float* sink) {
    const F32 x = V::Load(sink);
    const F32 y = V::Set1(1e-9F);
    F32 acc[kChains];
    KVIK_SIMD_UNROLL(16)
    for (int i = 0; i < kChains; ++i) {
      acc[i] = V::Add(x, V::Set1(static_cast<float>(i)));  // equal chains would be merged
    }
    for (size_t n = 0; n < iterations; ++n) {
      KVIK_SIMD_UNROLL(16)
      for (int i = 0; i < kChains; ++i) {
        acc[i] = V::Fma(x, y, acc[i]);
      }
    }
    for (int i = 1; i < kChains; ++i) {
      acc[0] = V::Add(acc[0], acc[i]);
    }
    V::Store(sink, acc[0]);
    return static_cast<double>(iterations) * kChains * 32;
  }

  static double RunBf16(size_t iterations, float* sink) {
    if constexpr (V::kHasBf16) {
      const auto x = V::Set1Pair(0x3F803F80U);
      const auto y = V::Set1Pair(0x30893089U);
      F32 acc[kChains];
      KVIK_SIMD_UNROLL(16)
      for (int i = 0; i < kChains; ++i) {
        acc[i] = V::Add(V::Load(sink), V::Set1(static_cast<float>(i)));
      }
      for (size_t n = 0; n < iterations; ++n) {
        KVIK_SIMD_UNROLL(16)
        for (int i = 0; i < kChains; ++i) {
          acc[i] = V::DotBf16(acc[i], x, y);
        }
      }
      for (int i = 1; i < kChains; ++i) {
        acc[0] = V::Add(acc[0], acc[i]);
      }
      V::Store(sink, acc[0]);
    }
    return static_cast<double>(iterations) * kChains * 64;
  }

  static void Read(const float* data, size_t floats, float* sink) {
    typename V::I32 acc[8];
    KVIK_SIMD_UNROLL(8)
    for (int i = 0; i < 8; ++i) {
      acc[i] = V::SetI(0);
    }
    const auto* p = reinterpret_cast<const int32_t*>(data);
    for (size_t at = 0; at < floats; at += 128) {
      KVIK_SIMD_UNROLL(8)
      for (int i = 0; i < 8; ++i) {
        acc[i] = V::XorI(acc[i], V::LoadI(p + at + static_cast<size_t>(i) * 16));
      }
    }
    for (int i = 1; i < 8; ++i) {
      acc[0] = V::XorI(acc[0], acc[i]);
    }
    V::Store(sink, V::FromBits(acc[0]));
  }

  static constexpr PeakLoops kLoops = {RunF32, V::kHasBf16 ? RunBf16 : nullptr, Read};
};

}  // namespace
}  // namespace kvik
