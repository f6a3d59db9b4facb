// SPDX-License-Identifier: Apache-2.0
// base/simd/simd_probe_inl.h: the body of simd_test_*.cc. Include the ISA's header first.
#pragma once

#include "base/simd/math.h"
#include "base/simd/simd_probe.h"

namespace kvik::simd {
namespace {

template <class V>
struct ProbeBody {
  using F32 = typename V::F32;
  using I32 = typename V::I32;
  using Mask = typename V::Mask;
  using Bf16x32 = typename V::Bf16x32;

  static void Emit(ProbeOutput* out, const char* name, F32 v) {
    out->name[out->num_ops] = name;
    V::Store(reinterpret_cast<float*>(out->bits[out->num_ops]), v);
    ++out->num_ops;
  }
  static void EmitI(ProbeOutput* out, const char* name, I32 v) { Emit(out, name, V::FromBits(v)); }
  static void EmitM(ProbeOutput* out, const char* name, Mask m) {
    Emit(out, name, V::Select(m, V::Set1(1.0F), V::Zero()));
  }
  static void EmitP(ProbeOutput* out, const char* name, Bf16x32 x) {
    out->name[out->num_ops] = name;
    V::StorePairs(reinterpret_cast<Bf16*>(out->bits[out->num_ops]), x);
    ++out->num_ops;
  }

  static void Run(const ProbeInput& in, ProbeOutput* out) {
    const F32 a = V::Load(in.a);
    const F32 b = V::Load(in.b);
    const F32 c = V::Load(in.c);
    const I32 ia = V::BitsOf(a);
    const I32 ib = V::BitsOf(b);
    const Bf16* bf16 = reinterpret_cast<const Bf16*>(in.half);
    const F16* f16 = reinterpret_cast<const F16*>(in.half);
    out->num_ops = 0;

    Emit(out, "Zero", V::Zero());
    Emit(out, "Set1", V::Set1(in.a[0]));
    Emit(out, "Load", a);
    for (size_t n : {0, 1, 7, 8, 9, 15, 16}) {
      Emit(out, "LoadN", V::LoadN(in.a, n));
      float partial[16];
      memset(partial, 0x55, sizeof(partial));
      V::StoreN(partial, a, n);
      Emit(out, "StoreN", V::Load(partial));
      EmitM(out, "FirstN", V::FirstN(n));
    }
    for (uint32_t bits : {0U, 0xFFFFU, 0x8001U, 0x5A3CU}) {
      EmitM(out, "LanesOf", V::LanesOf(bits));
    }
    Emit(out, "Add", V::Add(a, b));
    Emit(out, "Sub", V::Sub(a, b));
    Emit(out, "Mul", V::Mul(a, b));
    Emit(out, "Div", V::Div(a, b));
    Emit(out, "Sqrt", V::Sqrt(V::Abs(a)));
    Emit(out, "Fma", V::Fma(a, b, c));
    Emit(out, "Fnma", V::Fnma(a, b, c));
    Emit(out, "Neg", V::Neg(a));
    Emit(out, "Abs", V::Abs(a));
    Emit(out, "Max", V::Max(a, b));
    Emit(out, "Min", V::Min(a, b));
    // Integral values in [-250, 250] and moderate v, as the contract asks.
    const F32 small = V::Max(V::Set1(-250.0F), V::Min(V::Set1(250.0F), a));
    const F32 one_to_two = V::FromBits(V::OrI(V::AndI(ib, V::SetI(0x7FFFFF)), V::SetI(0x3F800000)));
    Emit(out, "RoundEven", V::RoundEven(small));
    Emit(out, "ScalePow2", V::ScalePow2(one_to_two, V::RoundEven(small)));
    Emit(out, "FractionDown", V::Add(V::FractionDown(small), V::Zero()));  // -0 may be 0
    Emit(out, "ScaleDownPow2", V::ScaleDownPow2(one_to_two, V::Min(V::Set1(119.0F), small)));
    Emit(out, "Exp2DownFast", simd::Exp2DownFast<V>(V::Min(V::Set1(119.0F), small)));
    EmitI(out, "ToI32", V::ToI32(small));
    EmitM(out, "Lt", V::Lt(a, b));
    EmitM(out, "Le", V::Le(a, b));
    EmitM(out, "Gt", V::Gt(a, b));
    EmitM(out, "Ge", V::Ge(a, b));
    EmitM(out, "Eq", V::Eq(a, b));
    EmitM(out, "Eq itself", V::Eq(a, a));
    Emit(out, "Select", V::Select(V::Lt(a, b), a, c));
    Emit(out, "Any", V::Set1(V::Any(V::Lt(a, b)) ? 1.0F : 0.0F));
    Emit(out, "Any of none", V::Set1(V::Any(V::Lt(a, a)) ? 1.0F : 0.0F));
    EmitI(out, "SetI", V::SetI(-77));
    int32_t ints[16];
    V::StoreI(ints, ib);
    EmitI(out, "LoadI", V::LoadI(ints));
    EmitI(out, "LoadU8", V::LoadU8(reinterpret_cast<const uint8_t*>(in.half)));
    EmitI(out, "LoadI8", V::LoadI8(reinterpret_cast<const int8_t*>(in.half)));
    uint8_t bytes[16][16] = {};
    V::StoreU8(bytes[3], ia);
    EmitI(out, "StoreU8", V::LoadI(reinterpret_cast<const int32_t*>(bytes[3])));
    const I32 quads[4] = {ia, ib, V::BitsOf(c), V::SetI(5)};
    uint8_t* places[16];
    for (int i = 0; i < 16; ++i) {
      places[i] = bytes[(i * 5 + 3) % 16];
    }
    V::StoreQuads(places, quads);
    I32 loaded[4];
    V::LoadQuads(places, loaded);
    for (int i = 0; i < 4; ++i) {
      EmitI(out, "StoreQuads", V::LoadI(reinterpret_cast<const int32_t*>(bytes[4 * i])));
      EmitI(out, "LoadQuads", loaded[i]);
    }
    EmitI(out, "SelectBits", V::SelectBits(ia, ib, V::BitsOf(c)));
    Emit(out, "Lookup16", V::Lookup16(a, ib));
    Emit(out, "Lookup32", V::Lookup32(a, b, V::BitsOf(c)));
    Emit(out, "DupLow", V::DupLow(a));
    Emit(out, "DupHigh", V::DupHigh(a));
    Emit(out, "SwapLanes<1>", V::template SwapLanes<1>(a));
    Emit(out, "SwapLanes<2>", V::template SwapLanes<2>(a));
    Emit(out, "SwapLanes<4>", V::template SwapLanes<4>(a));
    Emit(out, "SwapLanes<8>", V::template SwapLanes<8>(a));
    EmitI(out, "AddI", V::AddI(ia, ib));
    EmitI(out, "SubI", V::SubI(ia, ib));
    EmitI(out, "AndI", V::AndI(ia, ib));
    EmitI(out, "OrI", V::OrI(ia, ib));
    EmitI(out, "XorI", V::XorI(ia, ib));
    EmitI(out, "Shl", V::template Shl<5>(ia));
    EmitI(out, "Shr", V::template Shr<5>(ia));
    EmitM(out, "EqI", V::EqI(V::AndI(ia, V::SetI(1)), V::AndI(ib, V::SetI(1))));
    Emit(out, "ToF32", V::ToF32(ia));
    Emit(out, "LoadBf16", V::LoadBf16(bf16));
    Emit(out, "LoadF16", V::LoadF16(f16));
    uint32_t halves[16] = {};
    V::StoreBf16(reinterpret_cast<Bf16*>(halves), a);
    V::StoreF16(reinterpret_cast<F16*>(halves) + 16, a);
    Emit(out, "StoreBf16, StoreF16", V::Load(reinterpret_cast<const float*>(halves)));
    EmitP(out, "LoadPairs", V::LoadPairs(reinterpret_cast<const Bf16*>(in.a)));
    for (size_t n : {0, 1, 8, 11, 16}) {
      EmitP(out, "LoadPairsN", V::LoadPairsN(reinterpret_cast<const Bf16*>(in.a), n));
    }
    EmitP(out, "Set1Pair", V::Set1Pair(0x12345678U));
    Emit(out, "WidenEven", V::WidenEven(V::LoadPairs(reinterpret_cast<const Bf16*>(in.a))));
    Emit(out, "WidenOdd", V::WidenOdd(V::LoadPairs(reinterpret_cast<const Bf16*>(in.a))));
    EmitP(out, "Pairs", V::Pairs(a, b));
    EmitP(out, "PairsDaz", V::PairsDaz(a, b));
    EmitP(out, "ConcatDaz", V::ConcatDaz(a, b));
    Emit(out, "ReduceSum", V::Set1(V::ReduceSum(a)));
    Emit(out, "ReduceMax", V::Set1(V::ReduceMax(a)));
    V::Prefetch(in.a);
    Emit(out, "Exp", simd::Exp<V>(a));
    Emit(out, "Exp2", simd::Exp2<V>(a));
    Emit(out, "Exp2Fast", simd::Exp2Fast<V>(a));
  }

  static void DotBf16(const float* acc, const uint16_t* x, const uint16_t* y, float* out) {
    if constexpr (V::kHasBf16) {
      V::Store(out, V::DotBf16(V::Load(acc), V::LoadPairs(reinterpret_cast<const Bf16*>(x)),
                               V::LoadPairs(reinterpret_cast<const Bf16*>(y))));
    }
  }
  static void Exp(const float* in, float* out) { V::Store(out, simd::Exp<V>(V::Load(in))); }
  static void Exp2(const float* in, float* out) { V::Store(out, simd::Exp2<V>(V::Load(in))); }
  static void Exp2Fast(const float* in, float* out) {
    V::Store(out, simd::Exp2Fast<V>(V::Load(in)));
  }

  static constexpr Probe kProbe = {Run, V::kHasBf16 ? DotBf16 : nullptr, Exp, Exp2, Exp2Fast};
};

}  // namespace
}  // namespace kvik::simd
