// SPDX-License-Identifier: Apache-2.0
// base/simd/avx512bf16.h: AVX-512 plus the bf16 instructions. Contract: base/simd/simd.h.
#pragma once

#ifndef __AVX512BF16__
#error "include this only in files named *_avx512bf16.cc"
#endif

#include "base/simd/avx512.h"

namespace kvik::simd {
namespace {  // see simd.h: everything instantiated with this ISA must stay in its object file

struct Avx512Bf16Isa : Avx512Isa {
  static constexpr Isa kIsa = Isa::kAvx512Bf16;
  static constexpr const char* kName = "avx512bf16";
  static constexpr bool kHasBf16 = true;

  KVIK_SIMD_INLINE Bf16x32 PairsDaz(F32 even, F32 odd) {
    // The instruction packs [odd | even] as two halves; the words are interleaved afterwards.
    const __m512i packed = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd, even));
    const __m512i order =
        _mm512_setr_epi32(0x00100000, 0x00110001, 0x00120002, 0x00130003, 0x00140004, 0x00150005,
                          0x00160006, 0x00170007, 0x00180008, 0x00190009, 0x001A000A, 0x001B000B,
                          0x001C000C, 0x001D000D, 0x001E000E, 0x001F000F);
    return {_mm512_permutexvar_epi16(order, packed)};
  }
  KVIK_SIMD_INLINE Bf16x32 ConcatDaz(F32 a, F32 b) {
    return {reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a))};
  }
  KVIK_SIMD_INLINE F32 DotBf16(F32 acc, Bf16x32 x, Bf16x32 y) {
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(x.v), reinterpret_cast<__m512bh>(y.v));
  }
};

}  // namespace
}  // namespace kvik::simd
