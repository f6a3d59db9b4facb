// SPDX-License-Identifier: Apache-2.0
// Row operations: right against double precision, the same bits on every ISA, thread count and
// batch.
#include "tensor/ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "tensor/gemm.h"
#include "tensor/testing/random_weights.h"

namespace kvik::tensor {
namespace {

constexpr uint64_t kSeed = 14;
// Row widths with and without a partial vector; enough rows of the wide ones to run in parallel.
constexpr size_t kWidths[] = {1, 15, 16, 17, 40, 64, 100, 576};
constexpr size_t kRows = 67;

std::vector<float> RandomFloats(Rng& rng, size_t n, double magnitude) {
  std::vector<float> v(n);
  for (float& f : v) {
    f = static_cast<float>((rng.Uniform() * 2 - 1) * magnitude);
  }
  return v;
}

class OpsTest : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!IsaSupported(GetParam())) {
      GTEST_SKIP() << "this CPU has no " << IsaName(GetParam());
    }
  }

  // Runs `op` (which returns its output) with the scalar ISA and one thread, and with this ISA and
  // one and two threads; checks that all agree bit for bit and returns the output.
  std::vector<float> RunEverywhere(
      const std::function<std::vector<float>(const Context& ctx)>& op) const {
    ThreadPool one(1);
    ThreadPool two(2);
    const auto run = [&](Isa isa, ThreadPool& pool) {
      return op(Context::Create(isa, ComputeType::kF32, pool).value());
    };
    std::vector<float> expected = run(Isa::kScalar, one);
    EXPECT_EQ(expected, run(GetParam(), one));
    EXPECT_EQ(expected, run(GetParam(), two));
    return expected;
  }
};

TEST_P(OpsTest, RmsNorm) {
  Rng rng(kSeed);
  for (const size_t n : kWidths) {
    const size_t ld = n + 2;
    const std::vector<float> x = RandomFloats(rng, kRows * ld, 3.0);
    const std::vector<float> weight = RandomFloats(rng, n, 2.0);
    const std::vector<float> out = RunEverywhere([&](const Context& ctx) {
      std::vector<float> result(kRows * n);
      RmsNorm(ctx, x.data(), ld, kRows, n, weight.data(), 1e-5F, result.data(), n);
      return result;
    });
    for (size_t r = 0; r < kRows; ++r) {
      double squares = 0;
      for (size_t i = 0; i < n; ++i) {
        squares += static_cast<double>(x[r * ld + i]) * x[r * ld + i];
      }
      const double scale = 1.0 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
      for (size_t i = 0; i < n; ++i) {
        ASSERT_NEAR(out[r * n + i], x[r * ld + i] * scale * weight[i], 1e-5)
            << n << " seed " << kSeed;
      }
    }
  }
}

TEST_P(OpsTest, Rope) {
  Rng rng(kSeed, 1);
  for (const size_t half : {32, 40, 48, 64, 128}) {
    constexpr size_t kHeads = 3;
    constexpr size_t kPositions = 50;
    const size_t ld = kHeads * 2 * half + 1;
    const std::vector<float> x = RandomFloats(rng, kRows * ld, 3.0);
    std::vector<float> cos(kPositions * half);
    std::vector<float> sin(kPositions * half);
    for (size_t i = 0; i < cos.size(); ++i) {
      cos[i] = static_cast<float>(std::cos(static_cast<double>(i)));
      sin[i] = static_cast<float>(std::sin(static_cast<double>(i)));
    }
    std::vector<int32_t> positions(kRows);
    for (int32_t& p : positions) {
      p = static_cast<int32_t>(rng.Below(kPositions));
    }
    const RopeTable table = {.cos = cos.data(), .sin = sin.data(), .half = half};
    const std::vector<float> out = RunEverywhere([&](const Context& ctx) {
      std::vector<float> result = x;
      ApplyRope(ctx, result.data(), ld, kRows, kHeads, table, positions.data());
      return result;
    });
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t h = 0; h < kHeads; ++h) {
        for (size_t i = 0; i < half; ++i) {
          const size_t at = r * ld + h * 2 * half + i;
          const size_t angle = static_cast<size_t>(positions[r]) * half + i;
          const double a = x[at];
          const double b = x[at + half];
          ASSERT_NEAR(out[at], a * cos[angle] - b * sin[angle], 1e-5);
          ASSERT_NEAR(out[at + half], b * cos[angle] + a * sin[angle], 1e-5);
        }
      }
      ASSERT_EQ(out[r * ld + ld - 1], x[r * ld + ld - 1]);  // beyond the heads
    }
  }
}

TEST_P(OpsTest, SiluMulAndAdd) {
  Rng rng(kSeed, 2);
  for (const size_t n : kWidths) {
    const size_t ld = n + 2;
    const std::vector<float> x = RandomFloats(rng, kRows * ld, 20.0);
    const std::vector<float> y = RandomFloats(rng, kRows * ld, 3.0);
    const std::vector<float> product = RunEverywhere([&](const Context& ctx) {
      std::vector<float> result = x;  // in place
      SiluMul(ctx, result.data(), ld, y.data(), ld, kRows, n, result.data(), ld);
      return result;
    });
    const std::vector<float> sum = RunEverywhere([&](const Context& ctx) {
      std::vector<float> result = x;
      Add(ctx, result.data(), ld, y.data(), ld, kRows, n, result.data(), ld);
      return result;
    });
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t i = 0; i < ld; ++i) {
        const size_t at = r * ld + i;
        const double silu = x[at] / (1.0 + std::exp(-static_cast<double>(x[at])));
        ASSERT_NEAR(product[at], i < n ? silu * y[at] : x[at], 3e-5);
        ASSERT_EQ(sum[at], i < n ? x[at] + y[at] : x[at]);
      }
    }
  }
}

// The rows of packed activations as the kernels read them, padding included.
std::vector<std::byte> BytesOf(const PackedActivations& packed, ComputeType compute) {
  const size_t value_bytes = compute == ComputeType::kBf16 ? 2 : 4;
  const size_t row_bytes = (packed.k() + 7) / 8 * 8 * value_bytes;
  std::vector<std::byte> bytes;
  for (size_t row = 0; row < packed.rows(); ++row) {
    const auto* from =
        static_cast<const std::byte*>(packed.data()) + row * packed.ld_values() * value_bytes;
    bytes.insert(bytes.end(), from, from + row_bytes);
  }
  return bytes;
}

TEST_P(OpsTest, PackingOnTheWayEqualsOneOperationAfterTheOther) {
  Rng rng(kSeed, 3);
  for (const ComputeType compute : {ComputeType::kF32, ComputeType::kBf16}) {
    if (!ComputeSupported(GetParam(), compute)) {
      continue;
    }
    for (const int threads : {1, 2}) {
      ThreadPool pool(threads);
      const Context ctx = Context::Create(GetParam(), compute, pool).value();
      for (const size_t n : kWidths) {
        const std::vector<float> x = RandomFloats(rng, kRows * n, 3.0);
        const std::vector<float> y = RandomFloats(rng, kRows * n, 3.0);
        const std::vector<float> weight = RandomFloats(rng, n, 2.0);
        const auto packed_of = [&](const std::vector<float>& values) {
          PackedActivations packed = PackedActivations::Create(compute, kRows, n).value();
          packed.Pack(ctx, values.data(), kRows, n, n);
          return BytesOf(packed, compute);
        };
        PackedActivations got = PackedActivations::Create(compute, kRows, n).value();

        for (const bool with_y : {true, false}) {
          std::vector<float> sum = x;
          if (with_y) {
            Add(ctx, x.data(), n, y.data(), n, kRows, n, sum.data(), n);
          }
          std::vector<float> norm(kRows * n);
          RmsNorm(ctx, sum.data(), n, kRows, n, weight.data(), 1e-5F, norm.data(), n);
          std::vector<float> got_x = x;
          std::vector<float> got_norm(kRows * n);
          AddNormPack(ctx, got_x.data(), with_y ? y.data() : nullptr, kRows, n, weight.data(),
                      1e-5F, got_norm.data(), got);
          EXPECT_EQ(got_x, sum) << n;
          EXPECT_EQ(BytesOf(got, compute), packed_of(norm)) << n << " seed " << kSeed;
        }

        std::vector<float> product(kRows * n);
        SiluMul(ctx, x.data(), n, y.data(), n, kRows, n, product.data(), n);
        std::vector<float> gate = x;
        SiluMulPack(ctx, gate.data(), y.data(), kRows, n, got);
        EXPECT_EQ(gate, product) << n;
        EXPECT_EQ(BytesOf(got, compute), packed_of(product)) << n << " seed " << kSeed;
      }
    }
  }
}

TEST_P(OpsTest, SiluOfLargeValues) {
  const std::vector<float> gate = {-200.0F, -90.0F, 0.0F, 90.0F, 200.0F};
  const std::vector<float> up(gate.size(), 2.0F);
  const std::vector<float> out = RunEverywhere([&](const Context& ctx) {
    std::vector<float> result(gate.size());
    SiluMul(ctx, gate.data(), 5, up.data(), 5, 1, 5, result.data(), 5);
    return result;
  });
  EXPECT_EQ(out[0], 0.0F);
  EXPECT_NEAR(out[1], 0.0F, 1e-36);
  EXPECT_EQ(out[2], 0.0F);
  EXPECT_EQ(out[3], 180.0F);
  EXPECT_EQ(out[4], 400.0F);
}

TEST_P(OpsTest, EmbeddingRowsAreTheTablesRows) {
  Rng rng(kSeed, 3);
  ThreadPool pool(2);
  const Context ctx = Context::Create(GetParam(), ComputeType::kF32, pool).value();
  constexpr size_t kK = 64;
  const std::vector<std::byte> bytes = testing::RandomWeights(WeightFormat::kQ8_0, 100, kK, rng);
  const PackedMatrix table =
      PackedMatrix::Pack({.format = WeightFormat::kQ8_0, .rows = 100, .cols = kK, .data = bytes},
                         ComputeType::kF32, pool)
          .value();
  std::vector<int32_t> ids(200);
  for (int32_t& id : ids) {
    id = static_cast<int32_t>(rng.Below(100));
  }
  std::vector<float> out(ids.size() * kK);
  EmbeddingRows(ctx, table, ids, out.data(), kK);
  for (size_t i = 0; i < ids.size(); ++i) {
    std::vector<float> expected(kK);
    DequantizeRow(
        WeightFormat::kQ8_0,
        bytes.data() + static_cast<size_t>(ids[i]) * WeightRowBytes(WeightFormat::kQ8_0, kK), kK,
        expected.data());
    for (size_t j = 0; j < kK; ++j) {
      ASSERT_EQ(out[i * kK + j], expected[j]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, OpsTest,
                         ::testing::Values(Isa::kScalar, Isa::kAvx2, Isa::kAvx512,
                                           Isa::kAvx512Bf16),
                         [](const auto& param) { return std::string(IsaName(param.param)); });

}  // namespace
}  // namespace kvik::tensor
