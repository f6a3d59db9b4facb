// SPDX-License-Identifier: Apache-2.0
// base/simd/simd.h: the contract of the thin vector layer that all kernels are written over.
//
// A kernel is one template over an ISA struct (`template <class V>`). It is instantiated once per
// ISA, in a file whose suffix sets the compiler flags (`gemm_scalar.cc`, `gemm_avx2.cc`,
// `gemm_avx512.cc`, `gemm_avx512bf16.cc`), and reached through a table chosen at run time.
//
//   file suffix       include                     ISA struct
//   _scalar           base/simd/scalar.h          simd::ScalarIsa
//   _avx2             base/simd/avx2.h            simd::Avx2Isa
//   _avx512           base/simd/avx512.h          simd::Avx512Isa
//   _avx512bf16       base/simd/avx512bf16.h      simd::Avx512Bf16Isa
//
// Linkage. The ISA structs live in an unnamed namespace, so every template instantiated with one
// is local to its object file. Without that the linker could keep the AVX-512 copy of a kernel for
// everybody. For the same reason an ISA file uses no inline function or container of the standard
// library; helpers that do not depend on V go into an unnamed namespace too.
//
// Same bits. A vector is 16 float32 lanes on every ISA (two ymm on AVX2, an array in scalar code),
// and every operation below is either exactly rounded or a fixed sequence of such operations. One
// template therefore gives identical bits on all ISAs. Subnormals are kept, except in DotBf16.
//
// Members of an ISA struct V (all static and always inlined; v is F32, i is I32, m is Mask):
//
//   types      F32 [16] float; I32 [16] int32; Mask [16] bool; Bf16x32 [16] pairs of bf16, the
//              even element of a pair in the low half of its 32 bits
//   constants  kIsa; kName; kHasBf16 (DotBf16 exists); kNumRegisters (F32 values the register
//              file holds: tile sizes follow from it); kFastLookup (Lookup is one instruction)
//   parts      Part: the lanes of a vector that one register holds, kPartsPerVector (1: all of
//              them) to a vector, for loops that count registers. It has F32 and, of what follows,
//              Zero Set1 Load Store Mul Fma LoadPairs WidenEven WidenOdd. With two to a vector
//              also Hold<n>(v), which keeps the n values of an array in registers, and
//              WidenOddInPlace, which needs no further register
//   float      Zero() Set1(x) Load(p) Store(p, v) LoadN(p, n) StoreN(p, v, n): no alignment needed;
//              the N forms touch the first n (0..16) lanes only and load 0 elsewhere
//              Add Sub Mul Div Sqrt, Fma(a,b,c) = a*b+c, Fnma(a,b,c) = c-a*b, Neg, Abs
//              Max(a,b) = a > b ? a : b, Min(a,b) = a < b ? a : b (so b when either is NaN)
//              RoundEven(v) to an integral value
//              ScalePow2(v, n) = v * 2^n rounded once; n integral valued in [-250, 250] and the
//              product of v and 2^(n/2) normal
//              FractionDown(x) = x - floor(x) rounded down, a zero of either sign;
//              ScaleDownPow2(v, x) = v * 2^floor(x) rounded once, v in [0.5, 4). Both for finite x
//              below 120, one instruction on AVX-512
//   masks      Lt Le Gt Ge Eq(a,b) -> Mask; FirstN(n); LanesOf(bits): lane i if bit i is set, of
//              16; Select(m, yes, no); Any(m) -> bool
//   integers   SetI(x) LoadI(p) StoreI(p,i) LoadU8(p) LoadI8(p): 16 bytes widened
//              StoreU8(p, i): the low 8 bits of every lane
//              StoreQuads(p, v), LoadQuads(p, v): lane i of v[0], v[1], v[2], v[3] as 16 consecutive
//              bytes at p[i], for an array v of 4: a transposition of 16 rows of bytes
//              AddI SubI AndI OrI XorI(a, b)
//              Shl<k>(i) Shr<k>(i) (logical), EqI(a,b) -> Mask, ToF32(i), ToI32(v) (nearest even),
//              BitsOf(v) FromBits(i); SelectBits(mask, a, b) = (a & mask) | (b & ~mask)
//   shuffles   Lookup16(t, i): t[i & 15]; Lookup32(t, u, i): the same over t, then u, with i & 31
//              DupLow(v): lanes 0 0 1 1 .. 7 7; DupHigh(v): lanes 8 8 9 9 .. 15 15
//              SwapLanes<k>(v): lane i gets lane i ^ k, for k = 1, 2, 4, 8
//   16 bit     LoadBf16(p) LoadF16(p): 16 values widened; StoreBf16(p, v) = kvik::ToBf16 per lane;
//              StreamBf16(p, v): StoreBf16 around the caches; p is a multiple of 32 bytes. Other
//              threads may look after StreamFence()
//              StoreF16(p, v) = kvik::ToF16 per lane (a NaN's payload may differ)
//   bf16 pairs LoadPairs(p) StorePairs(p, x) Set1Pair(bits) LoadPairsN(p, n pairs)
//              WidenEven(x) WidenOdd(x) -> F32
//              Pairs(even, odd): lane i = bf16(odd[i]) : bf16(even[i]), rounded as kvik::ToBf16
//              PairsDaz(even, odd): the same for normal numbers, but subnormal inputs become zero
//              (one instruction where the hardware has it; DotBf16 reads subnormals as 0 anyway)
//              ConcatDaz(a, b): 32 consecutive bf16: first a's 16 lanes, then b's
//              DotBf16(acc, x, y): see below; only where kHasBf16
//   reductions ReduceSum(v): lanes i and i+8 are added, then i and i+4, i+2, i+1; ReduceMax(v)
//   memory     Prefetch(p): into all cache levels
//
// DotBf16 per lane, as AVX512_BF16 hardware computes it (no rounding mode, no flags):
//   t = fma(x.odd, y.odd, acc); result = fma(x.even, y.even, t)
// rounded to nearest even; subnormal inputs and results (acc, x, y, t, result) are replaced by
// zeros of the same sign.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/float16.h"
#include "base/isa.h"

#define KVIK_SIMD_INLINE [[gnu::always_inline]] static inline

#ifdef __clang__
#define KVIK_SIMD_UNROLL(n) _Pragma("unroll")
#else
#define KVIK_SIMD_PRAGMA_(text) _Pragma(#text)
#define KVIK_SIMD_UNROLL(n) KVIK_SIMD_PRAGMA_(GCC unroll n)
#endif

namespace kvik::simd {
inline constexpr size_t kLanes = 16;
}  // namespace kvik::simd
