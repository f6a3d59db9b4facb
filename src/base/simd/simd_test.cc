// SPDX-License-Identifier: Apache-2.0
// Every ISA of the vector layer against the scalar one, bit for bit.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "base/isa.h"
#include "base/rng.h"
#include "base/simd/simd_probe.h"

namespace kvik::simd {
namespace {

constexpr uint64_t kSeed = 20240817;

const Probe& ProbeOf(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return kProbeScalar;
    case Isa::kAvx2:
      return kProbeAvx2;
    case Isa::kAvx512:
      return kProbeAvx512;
    case Isa::kAvx512Bf16:
      return kProbeAvx512Bf16;
  }
  return kProbeScalar;
}

class SimdTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!IsaSupported(GetParam())) {
      GTEST_SKIP() << "this CPU has no " << IsaName(GetParam());
    }
  }
};

// Mostly ordinary numbers, with every kind of special one in between.
float AnyFloat(Rng& rng) {
  constexpr float kSpecial[] = {0.0F,
                                -0.0F,
                                1.0F,
                                0.5F,
                                2.5F,
                                -3.5F,
                                std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity(),
                                std::numeric_limits<float>::max(),
                                std::numeric_limits<float>::min(),
                                std::numeric_limits<float>::denorm_min(),
                                65504.0F,
                                65519.9F,
                                65520.0F,
                                127.5F,
                                88.7F,
                                -87.4F,
                                -104.5F};
  switch (rng.Below(8)) {
    case 0:
      return kSpecial[rng.Below(std::size(kSpecial))];
    case 1: {  // any bits but NaN
      const auto bits = static_cast<uint32_t>(rng.Next());
      const float f = std::bit_cast<float>(bits);
      return std::isnan(f) ? 1.25F : f;
    }
    case 2:
      return static_cast<float>((rng.Uniform() - 0.5) * 1e-38);
    case 3:
      return static_cast<float>(rng.Range(-300, 300)) * 0.5F;
    default:
      return static_cast<float>((rng.Uniform() - 0.5) * 200.0);
  }
}

bool SameBits(uint32_t x, uint32_t y) {
  return x == y || (std::isnan(std::bit_cast<float>(x)) && std::isnan(std::bit_cast<float>(y)));
}

TEST_P(SimdTest, EveryOperationEqualsScalar) {
  Rng rng(kSeed, 1);
  for (int round = 0; round < 4000; ++round) {
    ProbeInput in;
    for (int i = 0; i < 16; ++i) {
      in.a[i] = AnyFloat(rng);
      in.b[i] = AnyFloat(rng);
      in.c[i] = AnyFloat(rng);
      in.half[i] = static_cast<uint16_t>(rng.Next());
    }
    ProbeOutput expected;
    ProbeOutput actual;
    kProbeScalar.run(in, &expected);
    ProbeOf(GetParam()).run(in, &actual);
    ASSERT_EQ(expected.num_ops, actual.num_ops);
    for (int op = 0; op < expected.num_ops; ++op) {
      for (int i = 0; i < 16; ++i) {
        ASSERT_TRUE(SameBits(expected.bits[op][i], actual.bits[op][i]))
            << expected.name[op] << " lane " << i << " round " << round << " seed " << kSeed
            << std::hexfloat << ": a " << in.a[i] << " b " << in.b[i] << " c " << in.c[i]
            << std::hex << ": scalar " << expected.bits[op][i] << ", here " << actual.bits[op][i];
      }
    }
  }
}

// A bf16 whose exponents make products, sums, intermediate and final results fall on both sides
// of the subnormal and the overflow border.
uint16_t AnyBf16(Rng& rng, int regime) {
  constexpr int kLow[] = {120, 50, 0, 0};
  constexpr int kHigh[] = {134, 200, 254, 80};
  const int64_t exponent = rng.Below(16) == 0 ? 0 : rng.Range(kLow[regime], kHigh[regime]);
  return static_cast<uint16_t>((rng.Next() & 0x807FU) | static_cast<uint64_t>(exponent) << 7);
}

TEST_P(SimdTest, DotBf16EqualsScalar) {
  const Probe& probe = ProbeOf(GetParam());
  if (probe.dot_bf16 == nullptr) {
    GTEST_SKIP() << IsaName(GetParam()) << " has no bf16 dot product";
  }
  Rng rng(kSeed, 2);
  int subnormal_inputs = 0;
  int zero_results = 0;
  for (int round = 0; round < 16000; ++round) {  // 256000 dot products
    const int regime = round % 4;
    float acc[16];
    uint16_t x[32];
    uint16_t y[32];
    for (int i = 0; i < 32; ++i) {
      x[i] = AnyBf16(rng, regime);
      y[i] = AnyBf16(rng, regime);
      subnormal_inputs += (x[i] & 0x7F80U) == 0 && (x[i] & 0x7FU) != 0;
    }
    for (float& f : acc) {
      const auto exponent = static_cast<uint64_t>(rng.Range(0, regime == 0 ? 140 : 254));
      f = std::bit_cast<float>(static_cast<uint32_t>((rng.Next() & 0x807FFFFFU) | exponent << 23));
      if (regime == 3 && rng.Below(2) == 0) {
        f = 0.0F;
      }
    }
    float expected[16];
    float actual[16];
    kProbeScalar.dot_bf16(acc, x, y, expected);
    probe.dot_bf16(acc, x, y, actual);
    for (int i = 0; i < 16; ++i) {
      zero_results += actual[i] == 0.0F;
      ASSERT_TRUE(
          SameBits(std::bit_cast<uint32_t>(expected[i]), std::bit_cast<uint32_t>(actual[i])))
          << "round " << round << " lane " << i << " seed " << kSeed << std::hexfloat << ": acc "
          << acc[i] << std::hex << " x " << x[2 * i] << ":" << x[2 * i + 1] << " y " << y[2 * i]
          << ":" << y[2 * i + 1] << std::hexfloat << ": scalar " << expected[i] << ", here "
          << actual[i];
    }
  }
  EXPECT_GT(subnormal_inputs, 1000);
  EXPECT_GT(zero_results, 1000);
}

// Error of `fn` against `reference` in units of the last place of the result, over [lo, hi].
double MaxUlps(void (*fn)(const float*, float*), double (*reference)(double), double lo,
               double hi) {
  double worst = 0;
  float in[16];
  float out[16];
  constexpr int kSteps = 20000;
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < 16; ++i) {
      in[i] = static_cast<float>(lo + (hi - lo) * (step * 16 + i) / (kSteps * 16.0));
    }
    fn(in, out);
    for (int i = 0; i < 16; ++i) {
      const double exact = reference(in[i]);
      int exponent = 0;
      std::frexp(exact, &exponent);
      const double ulp = std::ldexp(1.0, std::max(exponent - 24, -149));
      worst = std::max(worst, std::abs(out[i] - exact) / ulp);
    }
  }
  return worst;
}

TEST_P(SimdTest, ExponentialsAreAccurate) {
  const Probe& probe = ProbeOf(GetParam());
  const auto exp = [](double x) { return std::exp(x); };
  const auto exp2 = [](double x) { return std::exp2(x); };
  EXPECT_LT(MaxUlps(probe.exp, exp, -104.0, 88.7), 1.5);
  EXPECT_LT(MaxUlps(probe.exp, exp, -1.0, 1.0), 1.5);
  EXPECT_LT(MaxUlps(probe.exp2, exp2, -149.0, 127.9), 2.5);
  EXPECT_LT(MaxUlps(probe.exp2_fast, exp2, -126.0, 127.9), 1.1e-4 * 0x1.0p24);
}

TEST_P(SimdTest, ExponentialsOfSpecialValues) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float in[16] = {0.0F,   -0.0F, -kInf, kInf, std::numeric_limits<float>::quiet_NaN(),
                        -1e30F, 1e30F, 129.0F};
  const Probe& probe = ProbeOf(GetParam());
  for (auto fn : {probe.exp, probe.exp2, probe.exp2_fast}) {
    float out[16];
    fn(in, out);
    EXPECT_EQ(out[0], 1.0F);
    EXPECT_EQ(out[1], 1.0F);
    EXPECT_EQ(out[2], 0.0F);
    EXPECT_EQ(out[3], kInf);
    EXPECT_TRUE(std::isnan(out[4]));
    EXPECT_EQ(out[5], 0.0F);
    EXPECT_EQ(out[6], kInf);
    EXPECT_EQ(out[7], kInf);
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, SimdTest,
                         testing::Values(Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16),
                         [](const auto& param) { return std::string(IsaName(param.param)); });

}  // namespace
}  // namespace kvik::simd
