// SPDX-License-Identifier: Apache-2.0
// base/simd/scalar.h: the vector layer in portable C++. It defines what the other ISAs must give,
// bit for bit; base/simd/simd.h is the contract.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>

#include "base/simd/simd.h"

// Functions, not inlined code: sixteen unrolled calls of fma at every use would make the scalar
// kernels by far the slowest files to compile, and calls cost little beside fma itself.
#define KVIK_SCALAR_OP [[gnu::noinline, maybe_unused]] static

namespace kvik::simd {
namespace {  // see simd.h: everything instantiated with this ISA must stay in its object file

struct ScalarIsa {
  static constexpr Isa kIsa = Isa::kScalar;
  static constexpr const char* kName = "scalar";
  static constexpr bool kHasBf16 = true;
  static constexpr int kNumRegisters = 8;
  static constexpr bool kFastLookup = false;
  using Part = ScalarIsa;
  static constexpr int kPartsPerVector = 1;

  struct F32 {
    float lane[16];
  };
  struct I32 {
    int32_t lane[16];
  };
  struct Mask {
    bool lane[16];
  };
  struct Bf16x32 {
    uint32_t lane[16];
  };

  template <class Fn>
  KVIK_SIMD_INLINE F32 Map(Fn fn) {
    F32 r;
    for (int i = 0; i < 16; ++i) {
      r.lane[i] = fn(i);
    }
    return r;
  }
  template <class Fn>
  KVIK_SIMD_INLINE I32 MapI(Fn fn) {
    I32 r;
    for (int i = 0; i < 16; ++i) {
      r.lane[i] = static_cast<int32_t>(fn(i));
    }
    return r;
  }
  template <class Fn>
  KVIK_SIMD_INLINE Mask MapM(Fn fn) {
    Mask r;
    for (int i = 0; i < 16; ++i) {
      r.lane[i] = fn(i);
    }
    return r;
  }
  KVIK_SIMD_INLINE uint32_t U(int32_t x) { return static_cast<uint32_t>(x); }

  KVIK_SCALAR_OP F32 Zero() { return Set1(0.0F); }
  KVIK_SCALAR_OP F32 Set1(float x) {
    return Map([=](int) { return x; });
  }
  KVIK_SCALAR_OP F32 Load(const float* p) {
    F32 r;
    std::memcpy(r.lane, p, sizeof(r.lane));
    return r;
  }
  KVIK_SIMD_INLINE void Store(float* p, F32 v) { std::memcpy(p, v.lane, sizeof(v.lane)); }
  KVIK_SCALAR_OP F32 LoadN(const float* p, size_t n) {
    return Map([=](int i) { return static_cast<size_t>(i) < n ? p[i] : 0.0F; });
  }
  KVIK_SIMD_INLINE void StoreN(float* p, F32 v, size_t n) {
    for (size_t i = 0; i < 16 && i < n; ++i) {
      p[i] = v.lane[i];
    }
  }
  KVIK_SCALAR_OP F32 Add(F32 a, F32 b) {
    return Map([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  KVIK_SCALAR_OP F32 Sub(F32 a, F32 b) {
    return Map([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  KVIK_SCALAR_OP F32 Mul(F32 a, F32 b) {
    return Map([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  KVIK_SCALAR_OP F32 Div(F32 a, F32 b) {
    return Map([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  KVIK_SCALAR_OP F32 Sqrt(F32 a) {
    return Map([&](int i) { return std::sqrt(a.lane[i]); });
  }
  KVIK_SCALAR_OP F32 Fma(F32 a, F32 b, F32 c) {
    return Map([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
  }
  KVIK_SCALAR_OP F32 Fnma(F32 a, F32 b, F32 c) {
    return Map([&](int i) { return std::fma(-a.lane[i], b.lane[i], c.lane[i]); });
  }
  KVIK_SCALAR_OP F32 Neg(F32 a) { return FromBits(XorI(BitsOf(a), SetI(INT32_MIN))); }
  KVIK_SCALAR_OP F32 Abs(F32 a) { return FromBits(AndI(BitsOf(a), SetI(INT32_MAX))); }
  KVIK_SCALAR_OP F32 Max(F32 a, F32 b) {
    return Map([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  KVIK_SCALAR_OP F32 Min(F32 a, F32 b) {
    return Map([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  KVIK_SCALAR_OP F32 RoundEven(F32 a) {
    return Map([&](int i) { return std::nearbyint(a.lane[i]); });
  }
  KVIK_SCALAR_OP F32 FractionDown(F32 x) {
    return Map([&](int i) {
      const float n = std::floor(x.lane[i]);
      const float f = x.lane[i] - n;  // inexact in (-1, 0) only, where f + n shows it
      return f + n > x.lane[i] ? std::nextafter(f, 0.0F) : f;
    });
  }
  KVIK_SCALAR_OP F32 ScaleDownPow2(F32 v, F32 x) {
    // From -152 on the result is 0. A NaN would not fit an int.
    return Map([&](int i) {
      const float n = std::floor(x.lane[i]);
      return n == n ? std::ldexp(v.lane[i], static_cast<int>(n > -250.0F ? n : -250.0F)) : n;
    });
  }
  KVIK_SCALAR_OP F32 ScalePow2(F32 v, F32 n) {
    return Map([&](int i) { return std::ldexp(v.lane[i], static_cast<int>(n.lane[i])); });
  }

  KVIK_SCALAR_OP Mask Lt(F32 a, F32 b) {
    return MapM([&](int i) { return a.lane[i] < b.lane[i]; });
  }
  KVIK_SCALAR_OP Mask Le(F32 a, F32 b) {
    return MapM([&](int i) { return a.lane[i] <= b.lane[i]; });
  }
  KVIK_SCALAR_OP Mask Gt(F32 a, F32 b) { return Lt(b, a); }
  KVIK_SCALAR_OP Mask Ge(F32 a, F32 b) { return Le(b, a); }
  KVIK_SCALAR_OP Mask Eq(F32 a, F32 b) {
    return MapM([&](int i) { return a.lane[i] == b.lane[i]; });
  }
  KVIK_SCALAR_OP Mask FirstN(size_t n) {
    return MapM([=](int i) { return static_cast<size_t>(i) < n; });
  }
  KVIK_SCALAR_OP Mask LanesOf(uint32_t bits) {
    return MapM([=](int i) { return (bits >> i & 1U) != 0; });
  }
  KVIK_SCALAR_OP F32 Select(Mask m, F32 yes, F32 no) {
    return Map([&](int i) { return m.lane[i] ? yes.lane[i] : no.lane[i]; });
  }
  KVIK_SIMD_INLINE bool Any(Mask m) {
    bool any = false;
    for (bool lane : m.lane) {
      any |= lane;
    }
    return any;
  }

  KVIK_SCALAR_OP I32 SetI(int32_t x) {
    return MapI([=](int) { return x; });
  }
  KVIK_SCALAR_OP I32 LoadI(const int32_t* p) {
    I32 r;
    std::memcpy(r.lane, p, sizeof(r.lane));
    return r;
  }
  KVIK_SIMD_INLINE void StoreI(int32_t* p, I32 v) { std::memcpy(p, v.lane, sizeof(v.lane)); }
  KVIK_SCALAR_OP I32 LoadU8(const uint8_t* p) {
    return MapI([=](int i) { return p[i]; });
  }
  KVIK_SCALAR_OP I32 LoadI8(const int8_t* p) {
    return MapI([=](int i) { return int32_t{p[i]}; });
  }
  KVIK_SIMD_INLINE void StoreU8(uint8_t* p, I32 v) {
    for (int i = 0; i < 16; ++i) {
      p[i] = static_cast<uint8_t>(v.lane[i]);
    }
  }
  KVIK_SIMD_INLINE void StoreQuads(uint8_t* const* p, const I32* v) {
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 4; ++j) {
        std::memcpy(p[i] + 4 * j, &v[j].lane[i], 4);
      }
    }
  }
  KVIK_SIMD_INLINE void LoadQuads(const uint8_t* const* p, I32* v) {
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 4; ++j) {
        std::memcpy(&v[j].lane[i], p[i] + 4 * j, 4);
      }
    }
  }
  KVIK_SCALAR_OP I32 AddI(I32 a, I32 b) {
    return MapI([&](int i) { return U(a.lane[i]) + U(b.lane[i]); });
  }
  KVIK_SCALAR_OP I32 SubI(I32 a, I32 b) {
    return MapI([&](int i) { return U(a.lane[i]) - U(b.lane[i]); });
  }
  KVIK_SCALAR_OP I32 AndI(I32 a, I32 b) {
    return MapI([&](int i) { return a.lane[i] & b.lane[i]; });
  }
  KVIK_SCALAR_OP I32 OrI(I32 a, I32 b) {
    return MapI([&](int i) { return a.lane[i] | b.lane[i]; });
  }
  KVIK_SCALAR_OP I32 XorI(I32 a, I32 b) {
    return MapI([&](int i) { return a.lane[i] ^ b.lane[i]; });
  }
  template <int kBits>
  KVIK_SCALAR_OP I32 Shl(I32 a) {
    return MapI([&](int i) { return U(a.lane[i]) << kBits; });
  }
  template <int kBits>
  KVIK_SCALAR_OP I32 Shr(I32 a) {
    return MapI([&](int i) { return U(a.lane[i]) >> kBits; });
  }
  KVIK_SCALAR_OP Mask EqI(I32 a, I32 b) {
    return MapM([&](int i) { return a.lane[i] == b.lane[i]; });
  }
  KVIK_SCALAR_OP F32 ToF32(I32 a) {
    return Map([&](int i) { return static_cast<float>(a.lane[i]); });
  }
  KVIK_SCALAR_OP I32 ToI32(F32 a) {
    return MapI([&](int i) { return std::nearbyint(a.lane[i]); });
  }
  KVIK_SCALAR_OP I32 BitsOf(F32 a) { return std::bit_cast<I32>(a); }
  KVIK_SCALAR_OP F32 FromBits(I32 a) { return std::bit_cast<F32>(a); }

  KVIK_SCALAR_OP I32 SelectBits(I32 mask, I32 a, I32 b) {
    return MapI([&](int i) { return (a.lane[i] & mask.lane[i]) | (b.lane[i] & ~mask.lane[i]); });
  }
  KVIK_SCALAR_OP F32 Lookup16(F32 t, I32 i) {
    return Map([&](int j) { return t.lane[i.lane[j] & 15]; });
  }
  KVIK_SCALAR_OP F32 Lookup32(F32 t, F32 u, I32 i) {
    return Map([&](int j) {
      return (i.lane[j] & 16) == 0 ? t.lane[i.lane[j] & 15] : u.lane[i.lane[j] & 15];
    });
  }
  KVIK_SCALAR_OP F32 DupLow(F32 v) {
    return Map([&](int i) { return v.lane[i / 2]; });
  }
  KVIK_SCALAR_OP F32 DupHigh(F32 v) {
    return Map([&](int i) { return v.lane[8 + i / 2]; });
  }
  template <int kDistance>
  KVIK_SCALAR_OP F32 SwapLanes(F32 v) {
    return Map([&](int i) { return v.lane[i ^ kDistance]; });
  }

  KVIK_SCALAR_OP F32 LoadBf16(const Bf16* p) {
    return Map([=](int i) { return ToFloat(p[i]); });
  }
  KVIK_SCALAR_OP F32 LoadF16(const F16* p) {
    return Map([=](int i) { return ToFloat(p[i]); });
  }
  KVIK_SIMD_INLINE void StoreBf16(Bf16* p, F32 v) {
    for (int i = 0; i < 16; ++i) {
      p[i] = ToBf16(v.lane[i]);
    }
  }
  KVIK_SIMD_INLINE void StreamBf16(Bf16* p, F32 v) { StoreBf16(p, v); }
  KVIK_SIMD_INLINE void StreamFence() {}
  KVIK_SIMD_INLINE void StoreF16(F16* p, F32 v) {
    for (int i = 0; i < 16; ++i) {
      p[i] = ToF16(v.lane[i]);
    }
  }

  KVIK_SCALAR_OP Bf16x32 LoadPairs(const Bf16* p) {
    Bf16x32 r;
    std::memcpy(r.lane, p, sizeof(r.lane));
    return r;
  }
  KVIK_SCALAR_OP Bf16x32 LoadPairsN(const Bf16* p, size_t num_pairs) {
    Bf16x32 r{};
    std::memcpy(r.lane, p, num_pairs * sizeof(r.lane[0]));
    return r;
  }
  KVIK_SIMD_INLINE void StorePairs(Bf16* p, Bf16x32 x) { std::memcpy(p, x.lane, sizeof(x.lane)); }
  KVIK_SCALAR_OP Bf16x32 Set1Pair(uint32_t bits) {
    Bf16x32 r;
    for (uint32_t& lane : r.lane) {
      lane = bits;
    }
    return r;
  }
  KVIK_SCALAR_OP F32 WidenEven(Bf16x32 x) {
    return Map([&](int i) { return std::bit_cast<float>(x.lane[i] << 16); });
  }
  KVIK_SCALAR_OP F32 WidenOdd(Bf16x32 x) {
    return Map([&](int i) { return std::bit_cast<float>(x.lane[i] & 0xFFFF0000U); });
  }
  KVIK_SCALAR_OP Bf16x32 Pairs(F32 even, F32 odd) {
    Bf16x32 r;
    for (int i = 0; i < 16; ++i) {
      r.lane[i] = ToBf16(even.lane[i]).bits | static_cast<uint32_t>(ToBf16(odd.lane[i]).bits) << 16;
    }
    return r;
  }
  KVIK_SCALAR_OP Bf16x32 PairsDaz(F32 even, F32 odd) { return Pairs(Daz(even), Daz(odd)); }
  KVIK_SCALAR_OP Bf16x32 ConcatDaz(F32 a, F32 b) {
    a = Daz(a);
    b = Daz(b);
    Bf16x32 r;
    for (int i = 0; i < 8; ++i) {
      r.lane[i] = ToBf16(a.lane[2 * i]).bits | static_cast<uint32_t>(ToBf16(a.lane[2 * i + 1]).bits)
                                                   << 16;
      r.lane[i + 8] =
          ToBf16(b.lane[2 * i]).bits | static_cast<uint32_t>(ToBf16(b.lane[2 * i + 1]).bits) << 16;
    }
    return r;
  }
  KVIK_SCALAR_OP F32 DotBf16(F32 acc, Bf16x32 x, Bf16x32 y) {
    const F32 t = Daz(Fma(Daz(WidenOdd(x)), Daz(WidenOdd(y)), Daz(acc)));
    return Daz(Fma(Daz(WidenEven(x)), Daz(WidenEven(y)), t));
  }

  KVIK_SCALAR_OP float ReduceSum(F32 v) {
    for (int step = 8; step >= 1; step /= 2) {
      for (int i = 0; i < step; ++i) {
        v.lane[i] += v.lane[i + step];
      }
    }
    return v.lane[0];
  }
  KVIK_SCALAR_OP float ReduceMax(F32 v) {
    for (int step = 8; step >= 1; step /= 2) {
      for (int i = 0; i < step; ++i) {
        v.lane[i] = v.lane[i] > v.lane[i + step] ? v.lane[i] : v.lane[i + step];
      }
    }
    return v.lane[0];
  }

  KVIK_SIMD_INLINE void Prefetch(const void* p) { __builtin_prefetch(p); }

  // Subnormals become zero of the same sign.
  KVIK_SCALAR_OP F32 Daz(F32 a) {
    return Map([&](int i) {
      const uint32_t bits = std::bit_cast<uint32_t>(a.lane[i]);
      return (bits & 0x7F800000U) == 0 ? std::bit_cast<float>(bits & 0x80000000U) : a.lane[i];
    });
  }
};

}  // namespace
}  // namespace kvik::simd
