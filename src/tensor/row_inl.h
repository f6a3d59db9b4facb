// SPDX-License-Identifier: Apache-2.0
// tensor/row_inl.h: the row operations over the vector layer. Include an ISA's header first.
#pragma once

#include "base/simd/math.h"
#include "base/simd/simd.h"
#include "tensor/kernels.h"

namespace kvik::tensor {
namespace {

template <class V>
struct RowOps {
  using F32 = typename V::F32;
  static constexpr size_t kLanes = simd::kLanes;

  // fn(offset, load, store) over n values in vectors; the last may be partial.
  template <class Fn>
  KVIK_SIMD_INLINE void ForEach(size_t n, const Fn& fn) {
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      fn(
          i, [i](const float* p) __attribute__((always_inline)) { return V::Load(p + i); },
          [i](float* p, F32 v) __attribute__((always_inline)) { V::Store(p + i, v); });
    }
    if (i < n) {
      const size_t rest = n - i;
      fn(
          i, [ i, rest ](const float* p) __attribute__((always_inline)) {
            return V::LoadN(p + i, rest);
          },
          [ i, rest ](float* p, F32 v)
              __attribute__((always_inline)) { V::StoreN(p + i, v, rest); });
    }
  }

  // Vector i of the row adds to sum i % 4: four chains cover the latency of the multiply-add.
  static float SumOfSquares(const float* x, size_t n) {
    F32 sum[4] = {V::Zero(), V::Zero(), V::Zero(), V::Zero()};
    size_t i = 0;
    for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
      for (size_t j = 0; j < 4; ++j) {
        const F32 v = V::Load(x + i + j * kLanes);
        sum[j] = V::Fma(v, v, sum[j]);
      }
    }
    for (size_t j = 0; i < n; i += kLanes, ++j) {
      const F32 v = V::LoadN(x + i, n - i < kLanes ? n - i : kLanes);
      sum[j] = V::Fma(v, v, sum[j]);
    }
    return V::ReduceSum(V::Add(V::Add(sum[0], sum[1]), V::Add(sum[2], sum[3])));
  }

  static void RmsNorm(const float* x, const float* weight, size_t n, float eps, float* out) {
    const float mean = SumOfSquares(x, n) / static_cast<float>(n);
    const F32 scale = V::Div(V::Set1(1.0F), V::Sqrt(V::Set1(mean + eps)));
    ForEach(
        n, [&](size_t, auto load, auto store) __attribute__((always_inline)) {
          store(out, V::Mul(V::Mul(load(x), scale), load(weight)));
        });
  }

  static void Rope(float* x, size_t heads, size_t half, const float* cos, const float* sin) {
    for (size_t head = 0; head < heads; ++head, x += 2 * half) {
      ForEach(
          half, [&](size_t, auto load, auto store) __attribute__((always_inline)) {
            const F32 a = load(x);
            const F32 b = load(x + half);
            const F32 c = load(cos);
            const F32 s = load(sin);
            store(x, V::Fnma(b, s, V::Mul(a, c)));
            store(x + half, V::Fma(b, c, V::Mul(a, s)));
          });
    }
  }

  static void SiluMul(const float* gate, const float* up, size_t n, float* out) {
    ForEach(
        n, [&](size_t, auto load, auto store) __attribute__((always_inline)) {
          const F32 g = load(gate);
          const F32 divisor = V::Add(V::Set1(1.0F), simd::Exp<V>(V::Neg(g)));
          store(out, V::Mul(V::Div(g, divisor), load(up)));
        });
  }

  static void Add(const float* x, const float* y, size_t n, float* out) {
    ForEach(
        n, [&](size_t, auto load, auto store)
               __attribute__((always_inline)) { store(out, V::Add(load(x), load(y))); });
  }

  static void ToBf16(const float* x, size_t n, Bf16* out) {
    size_t i = 0;
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
      V::StorePairs(out + i, V::ConcatDaz(V::Load(x + i), V::Load(x + i + kLanes)));
    }
    if (i < n) {
      const size_t rest = n - i;
      alignas(64) Bf16 last[2 * kLanes];
      V::StorePairs(last,
                    V::ConcatDaz(V::LoadN(x + i, rest < kLanes ? rest : kLanes),
                                 V::LoadN(x + i + kLanes, rest < kLanes ? 0 : rest - kLanes)));
      __builtin_memcpy(out + i, last, (rest + kOctet - 1) / kOctet * kOctet * sizeof(Bf16));
    }
  }

  static constexpr RowKernels kKernels = {RmsNorm, Rope, SiluMul, Add, ToBf16};
};

}  // namespace
}  // namespace kvik::tensor
