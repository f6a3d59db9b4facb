// SPDX-License-Identifier: Apache-2.0
// base/simd/math.h: transcendental functions over the vector layer: the same operations in the
// same order on every ISA, hence the same bits. NaN gives NaN; -infinity gives 0.
#pragma once

#include "base/simd/simd.h"

namespace kvik::simd {

// Coefficients are relative minimax fits with the constant term (Exp: also the linear one) fixed
// at 1, so that the functions are exactly 1 at 0.

// e^x, error below 1.5 ulp, gradual underflow, +infinity above 88.73.
template <class V>
KVIK_SIMD_INLINE typename V::F32 Exp(typename V::F32 x) {
  using F = typename V::F32;
  x = V::Min(V::Set1(89.0F), V::Max(V::Set1(-105.0F), x));  // this operand order keeps NaN
  const F n = V::RoundEven(V::Mul(x, V::Set1(1.44269504F)));
  F r = V::Fnma(n, V::Set1(0.693147182F), x);
  r = V::Fnma(n, V::Set1(-1.90465430e-9F), r);
  F p = V::Set1(1.979034165e-04F);
  p = V::Fma(p, r, V::Set1(1.394465975e-03F));
  p = V::Fma(p, r, V::Set1(8.333497075e-03F));
  p = V::Fma(p, r, V::Set1(4.166629495e-02F));
  p = V::Fma(p, r, V::Set1(1.666666587e-01F));
  p = V::Fma(p, r, V::Set1(5.000000068e-01F));
  p = V::Fma(V::Mul(r, r), p, r);
  return V::ScalePow2(V::Add(p, V::Set1(1.0F)), n);
}

// 2^f for |f| <= 1/2: the polynomials of the functions below.
template <class V>
KVIK_SIMD_INLINE typename V::F32 Exp2Fraction(typename V::F32 f) {
  typename V::F32 p = V::Set1(1.326472725e-03F);
  p = V::Fma(p, f, V::Set1(9.671512786e-03F));
  p = V::Fma(p, f, V::Set1(5.550733744e-02F));
  p = V::Fma(p, f, V::Set1(2.402224208e-01F));
  p = V::Fma(p, f, V::Set1(6.931469776e-01F));
  return V::Fma(p, f, V::Set1(1.0F));
}
template <class V>
KVIK_SIMD_INLINE typename V::F32 Exp2FractionFast(typename V::F32 f) {
  typename V::F32 p = V::Set1(5.500893126e-02F);
  p = V::Fma(p, f, V::Set1(2.422109678e-01F));
  p = V::Fma(p, f, V::Set1(6.932829281e-01F));
  return V::Fma(p, f, V::Set1(1.0F));
}

// 2^x, relative error below 1.5e-7 plus rounding (about 2 ulp), gradual underflow, +infinity from
// 128 on. Cheaper than Exp; softmax folds log2(e) into its scale.
template <class V>
KVIK_SIMD_INLINE typename V::F32 Exp2(typename V::F32 x) {
  using F = typename V::F32;
  x = V::Min(V::Set1(129.0F), V::Max(V::Set1(-151.0F), x));
  const F n = V::RoundEven(x);
  return V::ScalePow2(Exp2Fraction<V>(V::Sub(x, n)), n);
}

// 2^x with relative error below 1.1e-4: enough where the result is rounded to bf16 (3.9e-3).
template <class V>
KVIK_SIMD_INLINE typename V::F32 Exp2Fast(typename V::F32 x) {
  using F = typename V::F32;
  x = V::Min(V::Set1(129.0F), V::Max(V::Set1(-151.0F), x));
  const F n = V::RoundEven(x);
  return V::ScalePow2(Exp2FractionFast<V>(V::Sub(x, n)), n);
}

// 2^x with relative error below 8e-5 for x finite and below 119, 0 at the low end. Fewer steps than
// Exp2Fast where a scaling instruction rounds its exponent down by itself; not exactly 1 at 0.
template <class V>
KVIK_SIMD_INLINE typename V::F32 Exp2DownFast(typename V::F32 x) {
  const typename V::F32 f = V::FractionDown(x);
  typename V::F32 p = V::Set1(7.802452147e-02F);
  p = V::Fma(p, f, V::Set1(2.260671556e-01F));
  p = V::Fma(p, f, V::Set1(6.958335638e-01F));
  return V::ScaleDownPow2(V::Fma(p, f, V::Set1(9.999251962e-01F)), x);
}

}  // namespace kvik::simd
