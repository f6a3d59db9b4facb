// SPDX-License-Identifier: Apache-2.0
// base/simd/avx512.h: the vector layer on AVX-512 F, BW, DQ, VL: a vector is one zmm. Contract:
// base/simd/simd.h.
#pragma once

#ifndef __AVX512BW__
#error "include this only in files named *_avx512.cc or *_avx512bf16.cc"
#endif

#include <immintrin.h>

#include "base/simd/simd.h"

namespace kvik::simd {
namespace {  // see simd.h: everything instantiated with this ISA must stay in its object file

struct Avx512Isa {
  static constexpr Isa kIsa = Isa::kAvx512;
  static constexpr const char* kName = "avx512";
  static constexpr bool kHasBf16 = false;
  static constexpr int kNumRegisters = 32;
  static constexpr bool kFastLookup = true;
  using Part = Avx512Isa;
  static constexpr int kPartsPerVector = 1;

  using F32 = __m512;
  using I32 = __m512i;
  using Mask = __mmask16;
  struct Bf16x32 {
    __m512i v;
  };

  KVIK_SIMD_INLINE F32 Zero() { return _mm512_setzero_ps(); }
  KVIK_SIMD_INLINE F32 Set1(float x) { return _mm512_set1_ps(x); }
  KVIK_SIMD_INLINE F32 Load(const float* p) { return _mm512_loadu_ps(p); }
  KVIK_SIMD_INLINE void Store(float* p, F32 v) { _mm512_storeu_ps(p, v); }
  KVIK_SIMD_INLINE F32 LoadN(const float* p, size_t n) {
    return _mm512_maskz_loadu_ps(FirstN(n), p);
  }
  KVIK_SIMD_INLINE void StoreN(float* p, F32 v, size_t n) {
    _mm512_mask_storeu_ps(p, FirstN(n), v);
  }
  KVIK_SIMD_INLINE F32 Add(F32 a, F32 b) { return _mm512_add_ps(a, b); }
  KVIK_SIMD_INLINE F32 Sub(F32 a, F32 b) { return _mm512_sub_ps(a, b); }
  KVIK_SIMD_INLINE F32 Mul(F32 a, F32 b) { return _mm512_mul_ps(a, b); }
  KVIK_SIMD_INLINE F32 Div(F32 a, F32 b) { return _mm512_div_ps(a, b); }
  KVIK_SIMD_INLINE F32 Sqrt(F32 a) { return _mm512_sqrt_ps(a); }
  KVIK_SIMD_INLINE F32 Fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }
  KVIK_SIMD_INLINE F32 Fnma(F32 a, F32 b, F32 c) { return _mm512_fnmadd_ps(a, b, c); }
  KVIK_SIMD_INLINE F32 Neg(F32 a) { return FromBits(XorI(BitsOf(a), SetI(INT32_MIN))); }
  KVIK_SIMD_INLINE F32 Abs(F32 a) { return FromBits(AndI(BitsOf(a), SetI(INT32_MAX))); }
  KVIK_SIMD_INLINE F32 Max(F32 a, F32 b) { return _mm512_max_ps(a, b); }
  KVIK_SIMD_INLINE F32 Min(F32 a, F32 b) { return _mm512_min_ps(a, b); }
  KVIK_SIMD_INLINE F32 RoundEven(F32 a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  KVIK_SIMD_INLINE F32 ScalePow2(F32 v, F32 n) { return _mm512_scalef_ps(v, n); }
  KVIK_SIMD_INLINE F32 FractionDown(F32 x) {
    return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  }
  KVIK_SIMD_INLINE F32 ScaleDownPow2(F32 v, F32 x) { return _mm512_scalef_ps(v, x); }

  KVIK_SIMD_INLINE Mask Lt(F32 a, F32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  KVIK_SIMD_INLINE Mask Le(F32 a, F32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
  KVIK_SIMD_INLINE Mask Gt(F32 a, F32 b) { return Lt(b, a); }
  KVIK_SIMD_INLINE Mask Ge(F32 a, F32 b) { return Le(b, a); }
  KVIK_SIMD_INLINE Mask Eq(F32 a, F32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
  KVIK_SIMD_INLINE Mask FirstN(size_t n) { return static_cast<Mask>((1U << n) - 1U); }
  KVIK_SIMD_INLINE Mask LanesOf(uint32_t bits) { return static_cast<Mask>(bits); }
  KVIK_SIMD_INLINE F32 Select(Mask m, F32 yes, F32 no) { return _mm512_mask_blend_ps(m, no, yes); }
  KVIK_SIMD_INLINE bool Any(Mask m) { return m != 0; }

  KVIK_SIMD_INLINE I32 SetI(int32_t x) { return _mm512_set1_epi32(x); }
  KVIK_SIMD_INLINE I32 LoadI(const int32_t* p) { return _mm512_loadu_si512(p); }
  KVIK_SIMD_INLINE void StoreI(int32_t* p, I32 v) { _mm512_storeu_si512(p, v); }
  KVIK_SIMD_INLINE I32 LoadU8(const uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  KVIK_SIMD_INLINE I32 LoadI8(const int8_t* p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  KVIK_SIMD_INLINE void StoreU8(uint8_t* p, I32 v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v));
  }
  KVIK_SIMD_INLINE void StoreQuads(uint8_t* const* p, const I32* v) {
    const I32 low[2] = {_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpacklo_epi32(v[2], v[3])};
    const I32 high[2] = {_mm512_unpackhi_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[2], v[3])};
    StoreEveryFourth(p, _mm512_unpacklo_epi64(low[0], low[1]));
    StoreEveryFourth(p + 1, _mm512_unpackhi_epi64(low[0], low[1]));
    StoreEveryFourth(p + 2, _mm512_unpacklo_epi64(high[0], high[1]));
    StoreEveryFourth(p + 3, _mm512_unpackhi_epi64(high[0], high[1]));
  }
  KVIK_SIMD_INLINE void LoadQuads(const uint8_t* const* p, I32* v) {
    const I32 r[4] = {LoadEveryFourth(p), LoadEveryFourth(p + 1), LoadEveryFourth(p + 2),
                      LoadEveryFourth(p + 3)};
    const I32 low[2] = {_mm512_unpacklo_epi32(r[0], r[1]), _mm512_unpacklo_epi32(r[2], r[3])};
    const I32 high[2] = {_mm512_unpackhi_epi32(r[0], r[1]), _mm512_unpackhi_epi32(r[2], r[3])};
    v[0] = _mm512_unpacklo_epi64(low[0], low[1]);
    v[1] = _mm512_unpackhi_epi64(low[0], low[1]);
    v[2] = _mm512_unpacklo_epi64(high[0], high[1]);
    v[3] = _mm512_unpackhi_epi64(high[0], high[1]);
  }
  KVIK_SIMD_INLINE I32 AddI(I32 a, I32 b) { return _mm512_add_epi32(a, b); }
  KVIK_SIMD_INLINE I32 SubI(I32 a, I32 b) { return _mm512_sub_epi32(a, b); }
  KVIK_SIMD_INLINE I32 AndI(I32 a, I32 b) { return _mm512_and_si512(a, b); }
  KVIK_SIMD_INLINE I32 OrI(I32 a, I32 b) { return _mm512_or_si512(a, b); }
  KVIK_SIMD_INLINE I32 XorI(I32 a, I32 b) { return _mm512_xor_si512(a, b); }
  template <int kBits>
  KVIK_SIMD_INLINE I32 Shl(I32 a) {
    return _mm512_slli_epi32(a, kBits);
  }
  template <int kBits>
  KVIK_SIMD_INLINE I32 Shr(I32 a) {
    return _mm512_srli_epi32(a, kBits);
  }
  KVIK_SIMD_INLINE Mask EqI(I32 a, I32 b) { return _mm512_cmpeq_epi32_mask(a, b); }
  KVIK_SIMD_INLINE F32 ToF32(I32 a) { return _mm512_cvtepi32_ps(a); }
  KVIK_SIMD_INLINE I32 ToI32(F32 a) { return _mm512_cvtps_epi32(a); }
  KVIK_SIMD_INLINE I32 BitsOf(F32 a) { return _mm512_castps_si512(a); }
  KVIK_SIMD_INLINE F32 FromBits(I32 a) { return _mm512_castsi512_ps(a); }

  KVIK_SIMD_INLINE I32 SelectBits(I32 mask, I32 a, I32 b) {
    return _mm512_ternarylogic_epi32(mask, a, b, 0xCA);
  }
  KVIK_SIMD_INLINE F32 Lookup16(F32 t, I32 i) { return _mm512_permutexvar_ps(i, t); }
  KVIK_SIMD_INLINE F32 Lookup32(F32 t, F32 u, I32 i) { return _mm512_permutex2var_ps(t, i, u); }
  KVIK_SIMD_INLINE F32 DupLow(F32 v) {
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7),
                                 v);
  }
  KVIK_SIMD_INLINE F32 DupHigh(F32 v) {
    return _mm512_permutexvar_ps(
        _mm512_setr_epi32(8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15), v);
  }

  template <int kDistance>
  KVIK_SIMD_INLINE F32 SwapLanes(F32 v) {
    static_assert(kDistance == 1 || kDistance == 2 || kDistance == 4 || kDistance == 8);
    constexpr int kOrder = kDistance == 1 || kDistance == 4 ? 0xB1 : 0x4E;  // 1 0 3 2, 2 3 0 1
    if constexpr (kDistance < 4) {
      return _mm512_permute_ps(v, kOrder);
    } else {
      return _mm512_shuffle_f32x4(v, v, kOrder);
    }
  }

  KVIK_SIMD_INLINE F32 LoadBf16(const Bf16* p) {
    return FromBits(
        Shl<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))));
  }
  KVIK_SIMD_INLINE F32 LoadF16(const F16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  KVIK_SIMD_INLINE void StoreBf16(Bf16* p, F32 v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(RoundBf16(v)));
  }
  KVIK_SIMD_INLINE void StreamBf16(Bf16* p, F32 v) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(RoundBf16(v)));
  }
  KVIK_SIMD_INLINE void StreamFence() { _mm_sfence(); }
  KVIK_SIMD_INLINE void StoreF16(F16* p, F32 v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  KVIK_SIMD_INLINE Bf16x32 LoadPairs(const Bf16* p) { return {_mm512_loadu_si512(p)}; }
  KVIK_SIMD_INLINE Bf16x32 LoadPairsN(const Bf16* p, size_t num_pairs) {
    return {_mm512_maskz_loadu_epi32(FirstN(num_pairs), p)};
  }
  KVIK_SIMD_INLINE void StorePairs(Bf16* p, Bf16x32 x) { _mm512_storeu_si512(p, x.v); }
  KVIK_SIMD_INLINE Bf16x32 Set1Pair(uint32_t bits) {
    return {_mm512_set1_epi32(static_cast<int>(bits))};
  }
  KVIK_SIMD_INLINE F32 WidenEven(Bf16x32 x) { return FromBits(Shl<16>(x.v)); }
  KVIK_SIMD_INLINE F32 WidenOdd(Bf16x32 x) {
    return FromBits(AndI(x.v, SetI(static_cast<int32_t>(0xFFFF0000U))));
  }
  KVIK_SIMD_INLINE Bf16x32 Pairs(F32 even, F32 odd) {
    return {OrI(RoundBf16(even), Shl<16>(RoundBf16(odd)))};
  }
  KVIK_SIMD_INLINE Bf16x32 PairsDaz(F32 even, F32 odd) { return Pairs(Daz(even), Daz(odd)); }
  KVIK_SIMD_INLINE Bf16x32 ConcatDaz(F32 a, F32 b) {
    return {_mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(RoundBf16(Daz(a)))),
                               _mm512_cvtepi32_epi16(RoundBf16(Daz(b))), 1)};
  }

  KVIK_SIMD_INLINE float ReduceSum(F32 v) {
    const __m256 r8 = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 r4 = _mm_add_ps(_mm256_castps256_ps128(r8), _mm256_extractf128_ps(r8, 1));
    const __m128 r2 = _mm_add_ps(r4, _mm_movehl_ps(r4, r4));
    return _mm_cvtss_f32(_mm_add_ss(r2, _mm_shuffle_ps(r2, r2, 1)));
  }
  KVIK_SIMD_INLINE float ReduceMax(F32 v) {
    const __m256 r8 = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 r4 = _mm_max_ps(_mm256_castps256_ps128(r8), _mm256_extractf128_ps(r8, 1));
    const __m128 r2 = _mm_max_ps(r4, _mm_movehl_ps(r4, r4));
    return _mm_cvtss_f32(_mm_max_ss(r2, _mm_shuffle_ps(r2, r2, 1)));
  }

  KVIK_SIMD_INLINE void Prefetch(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
  }

  // The four quarters of v at p[0], p[4], p[8], p[12].
  KVIK_SIMD_INLINE void StoreEveryFourth(uint8_t* const* p, I32 v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p[0]), _mm512_castsi512_si128(v));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p[4]), _mm512_extracti32x4_epi32(v, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p[8]), _mm512_extracti32x4_epi32(v, 2));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p[12]), _mm512_extracti32x4_epi32(v, 3));
  }
  KVIK_SIMD_INLINE I32 LoadEveryFourth(const uint8_t* const* p) {
    const auto quarter = [p](int i) __attribute__((always_inline)) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p[i]));
    };
    I32 v = _mm512_castsi128_si512(quarter(0));
    v = _mm512_inserti32x4(v, quarter(4), 1);
    v = _mm512_inserti32x4(v, quarter(8), 2);
    return _mm512_inserti32x4(v, quarter(12), 3);
  }

  // bf16 bits in the low half of every lane, as kvik::ToBf16.
  KVIK_SIMD_INLINE I32 RoundBf16(F32 v) {
    const I32 u = BitsOf(v);
    const I32 high = Shr<16>(u);
    const I32 rounded = Shr<16>(AddI(AddI(u, SetI(0x7FFF)), AndI(high, SetI(1))));
    return _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), high, SetI(0x40));
  }
  // Subnormals become zero of the same sign.
  KVIK_SIMD_INLINE F32 Daz(F32 v) {
    const I32 u = BitsOf(v);
    const Mask tiny = _mm512_testn_epi32_mask(u, SetI(0x7F800000));
    return FromBits(_mm512_mask_and_epi32(u, tiny, u, SetI(INT32_MIN)));
  }
};

}  // namespace
}  // namespace kvik::simd
