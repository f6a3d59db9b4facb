// SPDX-License-Identifier: Apache-2.0
// base/rotary_angles_inl.h: the loop of rotary_angles.h, compiled per ISA by rotary_angles_*.cc.
// Plain C++ that compilers vectorise: every step is one exactly rounded double operation (nothing
// is contracted to multiply-adds), so the width of vectors does not show in the results.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvik {

// One position.
using RotaryAnglesFn = void (*)(double position, const double* frequencies, size_t n, double scale,
                                float* cosines, float* sines);

extern const RotaryAnglesFn kRotaryAnglesScalar;
extern const RotaryAnglesFn kRotaryAnglesAvx2;
extern const RotaryAnglesFn kRotaryAnglesAvx512;

namespace {  // see base/simd/simd.h

// Reduction to [-pi/4, pi/4] by a pi/2 in three parts, then the Taylor series, whose next term is
// below 1e-16.
[[maybe_unused]] void RotaryAnglesOfPosition(double position, const double* frequencies, size_t n,
                                             double scale, float* cosines, float* sines) {
  constexpr double kHalfPiHigh = 0x1.921fb544p+0;  // 33 bits: products with 20-bit counts are exact
  constexpr double kHalfPiMid = 0x1.0b4611a6p-34;
  constexpr double kHalfPiLow = 0x1.3198a2e037073p-69;
  constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
  // Adding it rounds to an integer, whose lowest bits are then those of the sum.
  constexpr double kRound = 0x1.8p+52;
  for (size_t i = 0; i < n; ++i) {
    const double angle = position * frequencies[i];
    const double shifted = angle * kTwoOverPi + kRound;
    const double quarter = shifted - kRound;
    const double r =
        ((angle - quarter * kHalfPiHigh) - quarter * kHalfPiMid) - quarter * kHalfPiLow;
    const double x = r * r;
    double s = -1.0 / 1307674368000.0;
    s = s * x + 1.0 / 6227020800.0;
    s = s * x - 1.0 / 39916800.0;
    s = s * x + 1.0 / 362880.0;
    s = s * x - 1.0 / 5040.0;
    s = s * x + 1.0 / 120.0;
    s = s * x - 1.0 / 6.0;
    const double sin = s * x * r + r;
    double c = 1.0 / 20922789888000.0;
    c = c * x - 1.0 / 87178291200.0;
    c = c * x + 1.0 / 479001600.0;
    c = c * x - 1.0 / 3628800.0;
    c = c * x + 1.0 / 40320.0;
    c = c * x - 1.0 / 720.0;
    c = c * x + 1.0 / 24.0;
    c = c * x - 0.5;
    const double cos = c * x + 1.0;
    // The quadrant swaps the two and sets their signs; as masks, which vectorise everywhere.
    uint64_t quadrant;
    uint64_t sin_bits;
    uint64_t cos_bits;
    __builtin_memcpy(&quadrant, &shifted, sizeof(quadrant));
    __builtin_memcpy(&sin_bits, &sin, sizeof(sin_bits));
    __builtin_memcpy(&cos_bits, &cos, sizeof(cos_bits));
    const uint64_t swap = (sin_bits ^ cos_bits) & (uint64_t{0} - (quadrant & 1));
    sin_bits ^= swap ^ ((quadrant & 2) << 62);
    cos_bits ^= swap ^ (((quadrant + 1) & 2) << 62);
    double signed_sin;
    double signed_cos;
    __builtin_memcpy(&signed_sin, &sin_bits, sizeof(signed_sin));
    __builtin_memcpy(&signed_cos, &cos_bits, sizeof(signed_cos));
    cosines[i] = static_cast<float>(signed_cos * scale);
    sines[i] = static_cast<float>(signed_sin * scale);
  }
}

}  // namespace
}  // namespace kvik
