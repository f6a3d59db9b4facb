// SPDX-License-Identifier: Apache-2.0
// Products against a naive loop over dequantised weights, bit for bit: for every ISA, arithmetic
// and format, whatever the number of rows, outputs and threads.
#include "tensor/gemm.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "base/float16.h"
#include "base/rng.h"
#include "tensor/testing/random_weights.h"

namespace kvik::tensor {
namespace {

constexpr uint64_t kSeed = 13;

float FlushSubnormal(float f) {
  return std::fpclassify(f) == FP_SUBNORMAL ? std::copysign(0.0F, f) : f;
}

// x and w [k]; the summation order that gemm.h promises.
float NaiveDot(ComputeType compute, const float* x, const float* w, size_t k) {
  float sum = 0.0F;
  if (compute == ComputeType::kF32) {
    for (size_t i = 0; i < k; ++i) {
      sum = std::fma(w[i], x[i], sum);
    }
    return sum;
  }
  const auto round = [](float f) { return ToFloat(ToBf16(FlushSubnormal(f))); };
  for (size_t i = 0; i < k; i += 2) {  // the odd element of a pair first
    if (i + 1 < k) {
      sum = FlushSubnormal(std::fma(round(w[i + 1]), round(x[i + 1]), sum));
    }
    sum = FlushSubnormal(std::fma(round(w[i]), round(x[i]), sum));
  }
  return sum;
}

struct Case {
  Isa isa;
  ComputeType compute;
};

std::string CaseName(const Case& c) {
  return std::string(IsaName(c.isa)) + (c.compute == ComputeType::kBf16 ? "_bf16" : "_f32");
}

class GemmTest : public ::testing::TestWithParam<std::tuple<Case, WeightFormat>> {
 protected:
  void SetUp() override {
    const Isa isa = std::get<0>(GetParam()).isa;
    if (!IsaSupported(isa)) {
      GTEST_SKIP() << "this CPU has no " << IsaName(isa);
    }
  }
};

TEST_P(GemmTest, EqualsTheNaiveLoopForEveryShape) {
  const auto [c, format] = GetParam();
  Rng rng(kSeed, static_cast<uint64_t>(format));
  const bool plain = WeightBlockOf(format).values == 1;
  constexpr size_t kMaxRows = 75;
  for (const size_t n : {1, 16, 54, 130, 192}) {
    // More than one slice of inputs, not a multiple of a slice; any k for plain floats.
    const size_t k = n == 54 ? (plain ? 301 : 512) : plain ? 37 : 256;
    const std::vector<std::byte> bytes = testing::RandomWeights(format, n, k, rng);
    const size_t ld_x = k + 3;
    std::vector<float> x(kMaxRows * ld_x);
    std::vector<float> bias(n);
    for (float& f : x) {
      f = static_cast<float>(rng.Uniform() * 2 - 1);
    }
    for (float& f : bias) {
      f = static_cast<float>(rng.Uniform() * 2 - 1);
    }
    std::vector<float> expected(kMaxRows * n);
    std::vector<float> row(k);
    for (size_t j = 0; j < n; ++j) {
      DequantizeRow(format, bytes.data() + j * WeightRowBytes(format, k), k, row.data());
      for (size_t i = 0; i < kMaxRows; ++i) {
        expected[i * n + j] = NaiveDot(c.compute, &x[i * ld_x], row.data(), k);
      }
    }
    for (const int threads : {1, 2}) {
      ThreadPool pool(threads);
      const Result<Context> ctx = Context::Create(c.isa, c.compute, pool);
      ASSERT_TRUE(ctx.has_value());
      const Result<PackedMatrix> weights = PackedMatrix::Pack(
          {.format = format, .rows = n, .cols = k, .data = bytes}, c.compute, pool);
      ASSERT_TRUE(weights.has_value());
      Result<PackedActivations> packed = PackedActivations::Create(c.compute, kMaxRows, k);
      ASSERT_TRUE(packed.has_value());
      for (const size_t rows : {1, 2, 3, 4, 5, 8, 9, 13, 75}) {
        packed->Pack(*ctx, x.data(), rows, k, ld_x);
        for (const bool with_bias : {false, true}) {
          constexpr float kUntouched = 1234.0F;
          const size_t ld_out = n + 5;
          std::vector<float> out(rows * ld_out, kUntouched);
          const GemmOutput output = {.weights = &*weights,
                                     .bias = with_bias ? bias.data() : nullptr,
                                     .out = out.data(),
                                     .ld_out = ld_out};
          Gemm(*ctx, *packed, {&output, 1});
          for (size_t i = 0; i < rows; ++i) {
            for (size_t j = 0; j < n; ++j) {
              const float sum = expected[i * n + j];
              ASSERT_EQ(out[i * ld_out + j], with_bias ? sum + bias[j] : sum)
                  << "row " << i << " of " << rows << ", output " << j << " of " << n << ", k " << k
                  << ", threads " << threads << ", seed " << kSeed;
            }
            for (size_t j = n; j < ld_out; ++j) {
              ASSERT_EQ(out[i * ld_out + j], kUntouched);
            }
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kernels, GemmTest,
    ::testing::Combine(::testing::Values(Case{Isa::kScalar, ComputeType::kF32},
                                         Case{Isa::kScalar, ComputeType::kBf16},
                                         Case{Isa::kAvx2, ComputeType::kF32},
                                         Case{Isa::kAvx512, ComputeType::kF32},
                                         Case{Isa::kAvx512Bf16, ComputeType::kF32},
                                         Case{Isa::kAvx512Bf16, ComputeType::kBf16}),
                       ::testing::ValuesIn(kAllWeightFormats)),
    [](const auto& param) {
      return CaseName(std::get<0>(param.param)) + "_" + WeightFormatName(std::get<1>(param.param));
    });

// Several matrices in one call, as q, k, v are, give what they give alone.
TEST(Gemm, MatricesThatShareAnInput) {
  Rng rng(kSeed, 100);
  constexpr size_t kK = 256;
  constexpr size_t kRows = 21;
  ThreadPool pool(2);
  for (const Isa isa : SupportedIsas()) {
    const Result<Context> ctx = Context::Create(isa, ComputeType::kF32, pool);
    ASSERT_TRUE(ctx.has_value());
    const size_t sizes[] = {192, 64, 70};
    const WeightFormat formats[] = {WeightFormat::kQ4_1, WeightFormat::kQ6_K, WeightFormat::kF32};
    std::vector<PackedMatrix> weights;
    for (int i = 0; i < 3; ++i) {
      const std::vector<std::byte> bytes = testing::RandomWeights(formats[i], sizes[i], kK, rng);
      Result<PackedMatrix> packed =
          PackedMatrix::Pack({.format = formats[i], .rows = sizes[i], .cols = kK, .data = bytes},
                             ComputeType::kF32, pool);
      ASSERT_TRUE(packed.has_value());
      weights.push_back(std::move(packed).value());
    }
    std::vector<float> x(kRows * kK);
    for (float& f : x) {
      f = static_cast<float>(rng.Uniform() * 2 - 1);
    }
    for (const size_t rows : {size_t{1}, kRows}) {
      Result<PackedActivations> packed = PackedActivations::Create(ComputeType::kF32, rows, kK);
      ASSERT_TRUE(packed.has_value());
      packed->Pack(*ctx, x.data(), rows, kK, kK);
      std::vector<float> together[3];
      std::vector<float> alone[3];
      GemmOutput outputs[3];
      for (int i = 0; i < 3; ++i) {
        together[i].resize(rows * sizes[i]);
        alone[i].resize(rows * sizes[i]);
        outputs[i] = {.weights = &weights[i], .out = together[i].data(), .ld_out = sizes[i]};
      }
      Gemm(*ctx, *packed, outputs);
      for (int i = 0; i < 3; ++i) {
        const GemmOutput output = {
            .weights = &weights[i], .out = alone[i].data(), .ld_out = sizes[i]};
        Gemm(*ctx, *packed, {&output, 1});
        EXPECT_EQ(together[i], alone[i]) << IsaName(isa) << " matrix " << i;
      }
    }
  }
}

TEST(Context, RefusesWhatTheIsaLacks) {
  ThreadPool pool(1);
  const Result<Context> ctx = Context::Create(Isa::kAvx2, ComputeType::kBf16, pool);
  ASSERT_FALSE(ctx.has_value());
  EXPECT_EQ(ctx.error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace kvik::tensor
