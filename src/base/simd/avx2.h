// SPDX-License-Identifier: Apache-2.0
// base/simd/avx2.h: the vector layer on AVX2 + FMA: a vector is two ymm. Contract:
// base/simd/simd.h.
#pragma once

#ifndef __AVX2__
#error "include this only in files named *_avx2.cc"
#endif

#include <immintrin.h>

#include "base/simd/simd.h"

namespace kvik::simd {
namespace {  // see simd.h: everything instantiated with this ISA must stay in its object file

// One of the two registers of a vector.
struct Avx2Part {
  using F32 = __m256;

  KVIK_SIMD_INLINE F32 Zero() { return _mm256_setzero_ps(); }
  KVIK_SIMD_INLINE F32 Set1(float x) { return _mm256_set1_ps(x); }
  KVIK_SIMD_INLINE F32 Load(const float* p) { return _mm256_loadu_ps(p); }
  KVIK_SIMD_INLINE void Store(float* p, F32 v) { _mm256_storeu_ps(p, v); }
  KVIK_SIMD_INLINE F32 Mul(F32 a, F32 b) { return _mm256_mul_ps(a, b); }
  // Loops over parts need all 16 registers. GCC likes to write a sum to another one than it was
  // read from, and to fetch operands early, until it runs out of them: here it has no choice.
  KVIK_SIMD_INLINE F32 Fma(F32 a, F32 b, F32 c) {
    __asm__ volatile("vfmadd231ps %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
    return c;
  }
  // v[0 .. kCount) are all in registers at this point, so that it pays to leave them there.
  template <int kCount>
  KVIK_SIMD_INLINE void Hold(F32* v) {
    if constexpr (kCount == 12) {
      __asm__ volatile(""
                       : "+x"(v[0]), "+x"(v[1]), "+x"(v[2]), "+x"(v[3]), "+x"(v[4]), "+x"(v[5]),
                         "+x"(v[6]), "+x"(v[7]), "+x"(v[8]), "+x"(v[9]), "+x"(v[10]), "+x"(v[11]));
    }
  }
  KVIK_SIMD_INLINE __m256i LoadPairs(const Bf16* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  KVIK_SIMD_INLINE F32 WidenEven(__m256i x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
  }
  KVIK_SIMD_INLINE F32 WidenOdd(__m256i x) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(x, _mm256_set1_epi32(static_cast<int32_t>(0xFFFF0000U))));
  }
  // The same with no register but that of x.
  KVIK_SIMD_INLINE F32 WidenOddInPlace(__m256i x) {
    __asm__ volatile("vpand %1, %0, %0" : "+x"(x) : "m"(kOddMask));
    return _mm256_castsi256_ps(x);
  }
  alignas(32) static constexpr uint32_t kOddMask[8] = {0xFFFF0000U, 0xFFFF0000U, 0xFFFF0000U,
                                                       0xFFFF0000U, 0xFFFF0000U, 0xFFFF0000U,
                                                       0xFFFF0000U, 0xFFFF0000U};
};

struct Avx2Isa {
  static constexpr Isa kIsa = Isa::kAvx2;
  static constexpr const char* kName = "avx2";
  static constexpr bool kHasBf16 = false;
  static constexpr int kNumRegisters = 8;
  static constexpr bool kFastLookup = false;
  using Part = Avx2Part;
  static constexpr int kPartsPerVector = 2;

  struct F32 {
    __m256 lo, hi;
  };
  struct I32 {
    __m256i lo, hi;
  };
  struct Mask {
    __m256 lo, hi;  // all bits of a lane set or clear
  };
  struct Bf16x32 {
    __m256i lo, hi;
  };

  KVIK_SIMD_INLINE F32 Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  KVIK_SIMD_INLINE F32 Set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  KVIK_SIMD_INLINE F32 Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  KVIK_SIMD_INLINE void Store(float* p, F32 v) {
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
  }
  KVIK_SIMD_INLINE F32 LoadN(const float* p, size_t n) {
    const Mask m = FirstN(n);
    return {_mm256_maskload_ps(p, _mm256_castps_si256(m.lo)),
            _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.hi))};
  }
  KVIK_SIMD_INLINE void StoreN(float* p, F32 v, size_t n) {
    const Mask m = FirstN(n);
    _mm256_maskstore_ps(p, _mm256_castps_si256(m.lo), v.lo);
    _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.hi), v.hi);
  }
  KVIK_SIMD_INLINE F32 Add(F32 a, F32 b) {
    return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
  }
  KVIK_SIMD_INLINE F32 Sub(F32 a, F32 b) {
    return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
  }
  KVIK_SIMD_INLINE F32 Mul(F32 a, F32 b) {
    return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
  }
  KVIK_SIMD_INLINE F32 Div(F32 a, F32 b) {
    return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
  }
  KVIK_SIMD_INLINE F32 Sqrt(F32 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
  KVIK_SIMD_INLINE F32 Fma(F32 a, F32 b, F32 c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  KVIK_SIMD_INLINE F32 Fnma(F32 a, F32 b, F32 c) {
    return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
  }
  KVIK_SIMD_INLINE F32 Neg(F32 a) { return FromBits(XorI(BitsOf(a), SetI(INT32_MIN))); }
  KVIK_SIMD_INLINE F32 Abs(F32 a) { return FromBits(AndI(BitsOf(a), SetI(INT32_MAX))); }
  KVIK_SIMD_INLINE F32 Max(F32 a, F32 b) {
    return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
  }
  KVIK_SIMD_INLINE F32 Min(F32 a, F32 b) {
    return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
  }
  KVIK_SIMD_INLINE F32 RoundEven(F32 a) {
    return {_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
            _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  KVIK_SIMD_INLINE F32 FractionDown(F32 x) {
    const F32 n = Floor(x);
    const F32 f = Sub(x, n);  // inexact in (-1, 0) only, where f + n shows it
    return Select(Gt(Add(f, n), x), FromBits(SubI(BitsOf(f), SetI(1))), f);
  }
  KVIK_SIMD_INLINE F32 ScaleDownPow2(F32 v, F32 x) {
    return ScalePow2(v, Max(Set1(-250.0F), Floor(x)));  // from -152 on the result is 0
  }
  KVIK_SIMD_INLINE F32 Floor(F32 x) { return {_mm256_floor_ps(x.lo), _mm256_floor_ps(x.hi)}; }
  KVIK_SIMD_INLINE F32 ScalePow2(F32 v, F32 n) {
    // Two factors, because 2^n itself may be out of range. The first product is exact.
    const I32 whole = ToI32(n);
    const I32 half = {_mm256_srai_epi32(whole.lo, 1), _mm256_srai_epi32(whole.hi, 1)};
    return Mul(Mul(v, Pow2(half)), Pow2(SubI(whole, half)));
  }

  KVIK_SIMD_INLINE Mask Lt(F32 a, F32 b) {
    return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
  }
  KVIK_SIMD_INLINE Mask Le(F32 a, F32 b) {
    return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LE_OQ)};
  }
  KVIK_SIMD_INLINE Mask Gt(F32 a, F32 b) { return Lt(b, a); }
  KVIK_SIMD_INLINE Mask Ge(F32 a, F32 b) { return Le(b, a); }
  KVIK_SIMD_INLINE Mask Eq(F32 a, F32 b) {
    return {_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)};
  }
  KVIK_SIMD_INLINE Mask FirstN(size_t n) {
    const __m256i count = _mm256_set1_epi32(static_cast<int>(n));
    const __m256i iota = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(count, iota)),
            _mm256_castsi256_ps(
                _mm256_cmpgt_epi32(count, _mm256_add_epi32(iota, _mm256_set1_epi32(8))))};
  }
  KVIK_SIMD_INLINE Mask LanesOf(uint32_t bits) {
    const __m256i all = _mm256_set1_epi32(static_cast<int>(bits));
    const __m256i lo = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i hi = _mm256_slli_epi32(lo, 8);
    return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, lo), lo)),
            _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, hi), hi))};
  }
  KVIK_SIMD_INLINE F32 Select(Mask m, F32 yes, F32 no) {
    return {_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)};
  }
  KVIK_SIMD_INLINE bool Any(Mask m) { return _mm256_movemask_ps(_mm256_or_ps(m.lo, m.hi)) != 0; }

  KVIK_SIMD_INLINE I32 SetI(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  KVIK_SIMD_INLINE I32 LoadI(const int32_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
  }
  KVIK_SIMD_INLINE void StoreI(int32_t* p, I32 v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v.lo);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), v.hi);
  }
  KVIK_SIMD_INLINE I32 LoadU8(const uint8_t* p) {
    return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))};
  }
  KVIK_SIMD_INLINE I32 LoadI8(const int8_t* p) {
    return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))};
  }
  KVIK_SIMD_INLINE void StoreU8(uint8_t* p, I32 v) {
    const I32 low = AndI(v, SetI(0xFF));
    // Both packs work within 128-bit halves: words of lanes 0-3 8-11 4-7 12-15, put in order.
    const __m256i words =
        _mm256_permute4x64_epi64(_mm256_packus_epi32(low.lo, low.hi), _MM_SHUFFLE(3, 1, 2, 0));
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(p),
        _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }
  KVIK_SIMD_INLINE void StoreQuads(uint8_t* const* p, const I32* v) {
    StoreQuadsHalf(p, v[0].lo, v[1].lo, v[2].lo, v[3].lo);
    StoreQuadsHalf(p + 8, v[0].hi, v[1].hi, v[2].hi, v[3].hi);
  }
  KVIK_SIMD_INLINE void LoadQuads(const uint8_t* const* p, I32* v) {
    __m256i r[4];
    LoadQuadsHalf(p, r);
    v[0].lo = r[0];
    v[1].lo = r[1];
    v[2].lo = r[2];
    v[3].lo = r[3];
    LoadQuadsHalf(p + 8, r);
    v[0].hi = r[0];
    v[1].hi = r[1];
    v[2].hi = r[2];
    v[3].hi = r[3];
  }
  KVIK_SIMD_INLINE void StoreQuadsHalf(uint8_t* const* p, __m256i a, __m256i b, __m256i c,
                                       __m256i d) {
    const __m256i low[2] = {_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d)};
    const __m256i high[2] = {_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d)};
    const auto store = [p](int i, __m256i r) __attribute__((always_inline)) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p[i]), _mm256_castsi256_si128(r));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p[i + 4]), _mm256_extracti128_si256(r, 1));
    };
    store(0, _mm256_unpacklo_epi64(low[0], low[1]));
    store(1, _mm256_unpackhi_epi64(low[0], low[1]));
    store(2, _mm256_unpacklo_epi64(high[0], high[1]));
    store(3, _mm256_unpackhi_epi64(high[0], high[1]));
  }
  KVIK_SIMD_INLINE void LoadQuadsHalf(const uint8_t* const* p, __m256i* v) {
    __m256i r[4];
    for (int i = 0; i < 4; ++i) {
      r[i] = _mm256_inserti128_si256(
          _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p[i]))),
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(p[i + 4])), 1);
    }
    const __m256i low[2] = {_mm256_unpacklo_epi32(r[0], r[1]), _mm256_unpacklo_epi32(r[2], r[3])};
    const __m256i high[2] = {_mm256_unpackhi_epi32(r[0], r[1]), _mm256_unpackhi_epi32(r[2], r[3])};
    v[0] = _mm256_unpacklo_epi64(low[0], low[1]);
    v[1] = _mm256_unpackhi_epi64(low[0], low[1]);
    v[2] = _mm256_unpacklo_epi64(high[0], high[1]);
    v[3] = _mm256_unpackhi_epi64(high[0], high[1]);
  }
  KVIK_SIMD_INLINE I32 AddI(I32 a, I32 b) {
    return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
  }
  KVIK_SIMD_INLINE I32 SubI(I32 a, I32 b) {
    return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
  }
  KVIK_SIMD_INLINE I32 AndI(I32 a, I32 b) {
    return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
  }
  KVIK_SIMD_INLINE I32 OrI(I32 a, I32 b) {
    return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
  }
  KVIK_SIMD_INLINE I32 XorI(I32 a, I32 b) {
    return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
  }
  template <int kBits>
  KVIK_SIMD_INLINE I32 Shl(I32 a) {
    return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
  }
  template <int kBits>
  KVIK_SIMD_INLINE I32 Shr(I32 a) {
    return {_mm256_srli_epi32(a.lo, kBits), _mm256_srli_epi32(a.hi, kBits)};
  }
  KVIK_SIMD_INLINE Mask EqI(I32 a, I32 b) {
    return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(a.lo, b.lo)),
            _mm256_castsi256_ps(_mm256_cmpeq_epi32(a.hi, b.hi))};
  }
  KVIK_SIMD_INLINE F32 ToF32(I32 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
  KVIK_SIMD_INLINE I32 ToI32(F32 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
  KVIK_SIMD_INLINE I32 BitsOf(F32 a) {
    return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)};
  }
  KVIK_SIMD_INLINE F32 FromBits(I32 a) {
    return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
  }

  KVIK_SIMD_INLINE I32 SelectBits(I32 mask, I32 a, I32 b) {
    return {_mm256_or_si256(_mm256_and_si256(mask.lo, a.lo), _mm256_andnot_si256(mask.lo, b.lo)),
            _mm256_or_si256(_mm256_and_si256(mask.hi, a.hi), _mm256_andnot_si256(mask.hi, b.hi))};
  }
  KVIK_SIMD_INLINE F32 Lookup16(F32 t, I32 i) {
    const I32 high = Shl<28>(i);  // bit 3 of an index as a blend's sign
    return {_mm256_blendv_ps(_mm256_permutevar8x32_ps(t.lo, i.lo),
                             _mm256_permutevar8x32_ps(t.hi, i.lo), _mm256_castsi256_ps(high.lo)),
            _mm256_blendv_ps(_mm256_permutevar8x32_ps(t.lo, i.hi),
                             _mm256_permutevar8x32_ps(t.hi, i.hi), _mm256_castsi256_ps(high.hi))};
  }
  KVIK_SIMD_INLINE F32 Lookup32(F32 t, F32 u, I32 i) {
    const F32 high = FromBits(Shl<27>(i));
    return Select(Mask{high.lo, high.hi}, Lookup16(u, i), Lookup16(t, i));
  }
  KVIK_SIMD_INLINE F32 DupLow(F32 v) { return Dup(v.lo); }
  KVIK_SIMD_INLINE F32 DupHigh(F32 v) { return Dup(v.hi); }
  template <int kDistance>
  KVIK_SIMD_INLINE F32 SwapLanes(F32 v) {
    static_assert(kDistance == 1 || kDistance == 2 || kDistance == 4 || kDistance == 8);
    if constexpr (kDistance == 8) {
      return {v.hi, v.lo};
    } else if constexpr (kDistance == 4) {
      return {_mm256_permute2f128_ps(v.lo, v.lo, 1), _mm256_permute2f128_ps(v.hi, v.hi, 1)};
    } else {
      constexpr int kOrder = kDistance == 1 ? 0xB1 : 0x4E;  // 1 0 3 2, 2 3 0 1
      return {_mm256_permute_ps(v.lo, kOrder), _mm256_permute_ps(v.hi, kOrder)};
    }
  }
  KVIK_SIMD_INLINE F32 Dup(__m256 half) {
    return {_mm256_permutevar8x32_ps(half, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
            _mm256_permutevar8x32_ps(half, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7))};
  }

  KVIK_SIMD_INLINE F32 LoadBf16(const Bf16* p) {
    const __m128i* q = reinterpret_cast<const __m128i*>(p);
    return FromBits(Shl<16>(I32{_mm256_cvtepu16_epi32(_mm_loadu_si128(q)),
                                _mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1))}));
  }
  KVIK_SIMD_INLINE F32 LoadF16(const F16* p) {
    const __m128i* q = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
  }
  KVIK_SIMD_INLINE void StoreBf16(Bf16* p, F32 v) {
    const I32 r = RoundBf16(v);
    // packus works within 128-bit halves; the permutation puts the quarters back in order.
    const __m256i packed =
        _mm256_permute4x64_epi64(_mm256_packus_epi32(r.lo, r.hi), _MM_SHUFFLE(3, 1, 2, 0));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), packed);
  }
  KVIK_SIMD_INLINE void StreamBf16(Bf16* p, F32 v) {
    const I32 r = RoundBf16(v);
    const __m256i packed =
        _mm256_permute4x64_epi64(_mm256_packus_epi32(r.lo, r.hi), _MM_SHUFFLE(3, 1, 2, 0));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), packed);
  }
  KVIK_SIMD_INLINE void StreamFence() { _mm_sfence(); }
  KVIK_SIMD_INLINE void StoreF16(F16* p, F32 v) {
    __m128i* q = reinterpret_cast<__m128i*>(p);
    _mm_storeu_si128(q, _mm256_cvtps_ph(v.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128(q + 1, _mm256_cvtps_ph(v.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  KVIK_SIMD_INLINE Bf16x32 LoadPairs(const Bf16* p) {
    const I32 r = LoadI(reinterpret_cast<const int32_t*>(p));
    return {r.lo, r.hi};
  }
  KVIK_SIMD_INLINE Bf16x32 LoadPairsN(const Bf16* p, size_t num_pairs) {
    const Mask m = FirstN(num_pairs);
    const int* q = reinterpret_cast<const int*>(p);
    return {_mm256_maskload_epi32(q, _mm256_castps_si256(m.lo)),
            _mm256_maskload_epi32(q + 8, _mm256_castps_si256(m.hi))};
  }
  KVIK_SIMD_INLINE void StorePairs(Bf16* p, Bf16x32 x) {
    StoreI(reinterpret_cast<int32_t*>(p), I32{x.lo, x.hi});
  }
  KVIK_SIMD_INLINE Bf16x32 Set1Pair(uint32_t bits) {
    const __m256i r = _mm256_set1_epi32(static_cast<int>(bits));
    return {r, r};
  }
  KVIK_SIMD_INLINE F32 WidenEven(Bf16x32 x) { return FromBits(Shl<16>(I32{x.lo, x.hi})); }
  KVIK_SIMD_INLINE F32 WidenOdd(Bf16x32 x) {
    return FromBits(AndI(I32{x.lo, x.hi}, SetI(static_cast<int32_t>(0xFFFF0000U))));
  }
  KVIK_SIMD_INLINE Bf16x32 Pairs(F32 even, F32 odd) {
    const I32 r = OrI(RoundBf16(even), Shl<16>(RoundBf16(odd)));
    return {r.lo, r.hi};
  }
  KVIK_SIMD_INLINE Bf16x32 PairsDaz(F32 even, F32 odd) { return Pairs(Daz(even), Daz(odd)); }
  KVIK_SIMD_INLINE Bf16x32 ConcatDaz(F32 a, F32 b) {
    const I32 x = RoundBf16(Daz(a));
    const I32 y = RoundBf16(Daz(b));
    return {_mm256_permute4x64_epi64(_mm256_packus_epi32(x.lo, x.hi), _MM_SHUFFLE(3, 1, 2, 0)),
            _mm256_permute4x64_epi64(_mm256_packus_epi32(y.lo, y.hi), _MM_SHUFFLE(3, 1, 2, 0))};
  }

  KVIK_SIMD_INLINE float ReduceSum(F32 v) {
    const __m256 r8 = _mm256_add_ps(v.lo, v.hi);
    const __m128 r4 = _mm_add_ps(_mm256_castps256_ps128(r8), _mm256_extractf128_ps(r8, 1));
    const __m128 r2 = _mm_add_ps(r4, _mm_movehl_ps(r4, r4));
    return _mm_cvtss_f32(_mm_add_ss(r2, _mm_shuffle_ps(r2, r2, 1)));
  }
  KVIK_SIMD_INLINE float ReduceMax(F32 v) {
    const __m256 r8 = _mm256_max_ps(v.lo, v.hi);
    const __m128 r4 = _mm_max_ps(_mm256_castps256_ps128(r8), _mm256_extractf128_ps(r8, 1));
    const __m128 r2 = _mm_max_ps(r4, _mm_movehl_ps(r4, r4));
    return _mm_cvtss_f32(_mm_max_ss(r2, _mm_shuffle_ps(r2, r2, 1)));
  }

  KVIK_SIMD_INLINE void Prefetch(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
  }

  // 2^n for n in [-126, 127].
  KVIK_SIMD_INLINE F32 Pow2(I32 n) { return FromBits(Shl<23>(AddI(n, SetI(127)))); }
  // bf16 bits in the low half of every lane, as kvik::ToBf16.
  KVIK_SIMD_INLINE I32 RoundBf16(F32 v) {
    const I32 u = BitsOf(v);
    const I32 odd = AndI(Shr<16>(u), SetI(1));
    const I32 rounded = Shr<16>(AddI(AddI(u, SetI(0x7FFF)), odd));
    const I32 quiet = OrI(Shr<16>(u), SetI(0x40));
    const Mask is_nan = {_mm256_cmp_ps(v.lo, v.lo, _CMP_UNORD_Q),
                         _mm256_cmp_ps(v.hi, v.hi, _CMP_UNORD_Q)};
    return BitsOf(Select(is_nan, FromBits(quiet), FromBits(rounded)));
  }
  // Subnormals become zero of the same sign.
  KVIK_SIMD_INLINE F32 Daz(F32 v) {
    const I32 u = BitsOf(v);
    const Mask tiny = EqI(AndI(u, SetI(0x7F800000)), SetI(0));
    return Select(tiny, FromBits(AndI(u, SetI(INT32_MIN))), v);
  }
};

}  // namespace
}  // namespace kvik::simd
