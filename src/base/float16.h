// SPDX-License-Identifier: Apache-2.0
// base/float16.h: scalar conversions of bf16 and IEEE half. Round to nearest even; NaN stays NaN.
// Kernels have vector versions that must agree with these bit for bit.
#pragma once

#include <bit>
#include <cstdint>

namespace kvik {

// Storage types: bits only, no arithmetic.
struct Bf16 {
  uint16_t bits = 0;
  friend bool operator==(Bf16, Bf16) = default;
};
struct F16 {
  uint16_t bits = 0;
  friend bool operator==(F16, F16) = default;
};

inline float ToFloat(Bf16 v) { return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16); }

inline Bf16 ToBf16(float v) {
  const uint32_t u = std::bit_cast<uint32_t>(v);
  if ((u & 0x7FFFFFFFU) > 0x7F800000U) {
    return Bf16{static_cast<uint16_t>((u >> 16) | 0x40U)};  // quiet NaN
  }
  return Bf16{static_cast<uint16_t>((u + 0x7FFFU + ((u >> 16) & 1U)) >> 16)};
}

inline float ToFloat(F16 v) {
  const uint32_t sign = static_cast<uint32_t>(v.bits & 0x8000U) << 16;
  const uint32_t exponent = (v.bits >> 10) & 0x1FU;
  const uint32_t mantissa = v.bits & 0x3FFU;
  if (exponent == 0x1FU) {
    return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13));
  }
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24 is exact in float
    const float magnitude = static_cast<float>(mantissa) * 0x1.0p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
}

inline F16 ToF16(float v) {
  const uint32_t u = std::bit_cast<uint32_t>(v);
  const auto sign = static_cast<uint16_t>((u >> 16) & 0x8000U);
  const uint32_t magnitude = u & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {
    return F16{static_cast<uint16_t>(sign | 0x7E00U)};
  }
  if (magnitude >= 0x477FF000U) {  // rounds to 65536 or is infinite
    return F16{static_cast<uint16_t>(sign | 0x7C00U)};
  }
  if (magnitude < 0x38800000U) {  // subnormal half: add 0.5, whose ulp is 2^-24, and keep the ulps
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return F16{static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000U))};
  }
  const uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U);
  return F16{static_cast<uint16_t>(sign | ((rounded - 0x38000000U) >> 13))};
}

}  // namespace kvik
