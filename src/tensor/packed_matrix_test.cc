// SPDX-License-Identifier: Apache-2.0
#include "tensor/packed_matrix.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/float16.h"
#include "base/rng.h"
#include "tensor/testing/random_weights.h"

namespace kvik::tensor {
namespace {

constexpr uint64_t kSeed = 12;

// Bit equality, except that zeros of both signs are one value.
::testing::AssertionResult SameFloats(const std::vector<float>& x, const std::vector<float>& y) {
  for (size_t i = 0; i < x.size(); ++i) {
    if (!(x[i] == y[i])) {
      return ::testing::AssertionFailure() << "value " << i << ": " << x[i] << " and " << y[i];
    }
  }
  return ::testing::AssertionSuccess();
}

TEST(PackedMatrix, RowsReadBackExactly) {
  Rng rng(kSeed);
  ThreadPool pool(2);
  for (const WeightFormat format : kAllWeightFormats) {
    for (const ComputeType compute : {ComputeType::kF32, ComputeType::kBf16}) {
      for (const size_t n : {1, 16, 70, 129}) {
        const bool plain = WeightBlockOf(format).values == 1;
        const size_t k = plain ? 37 : 512;
        const std::vector<std::byte> bytes = testing::RandomWeights(format, n, k, rng);
        const Result<PackedMatrix> packed = PackedMatrix::Pack(
            {.format = format, .rows = n, .cols = k, .data = bytes}, compute, pool);
        ASSERT_TRUE(packed.has_value());
        for (size_t row = 0; row < n; ++row) {
          std::vector<float> expected(k);
          DequantizeRow(format, bytes.data() + row * WeightRowBytes(format, k), k, expected.data());
          if (plain && compute == ComputeType::kBf16) {
            for (float& f : expected) {
              f = ToFloat(ToBf16(f));
            }
          }
          std::vector<float> actual(k);
          packed->ReadRow(row, actual.data());
          ASSERT_TRUE(SameFloats(expected, actual))
              << WeightFormatName(format) << " row " << row << " of " << n << " seed " << kSeed;
        }
      }
    }
  }
}

TEST(PackedMatrix, RowOrderPermutesAndSelects) {
  Rng rng(kSeed, 1);
  ThreadPool pool(1);
  const std::vector<std::byte> bytes = testing::RandomWeights(WeightFormat::kQ4_0, 20, 64, rng);
  const std::vector<uint32_t> order = {19, 0, 7, 7, 3};
  const Result<PackedMatrix> packed = PackedMatrix::Pack(
      {.format = WeightFormat::kQ4_0, .rows = 20, .cols = 64, .data = bytes, .row_order = order},
      ComputeType::kF32, pool);
  ASSERT_TRUE(packed.has_value());
  ASSERT_EQ(packed->n(), order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    std::vector<float> expected(64);
    std::vector<float> actual(64);
    DequantizeRow(WeightFormat::kQ4_0,
                  bytes.data() + order[i] * WeightRowBytes(WeightFormat::kQ4_0, 64), 64,
                  expected.data());
    packed->ReadRow(i, actual.data());
    EXPECT_TRUE(SameFloats(expected, actual)) << i;
  }
}

TEST(PackedMatrix, StaysAboutAsSmallAsTheFile) {
  ThreadPool pool(1);
  Rng rng(kSeed, 2);
  for (const WeightFormat format : kAllWeightFormats) {
    const std::vector<std::byte> bytes = testing::RandomWeights(format, 64, 1024, rng);
    const Result<PackedMatrix> packed = PackedMatrix::Pack(
        {.format = format, .rows = 64, .cols = 1024, .data = bytes}, ComputeType::kF32, pool);
    ASSERT_TRUE(packed.has_value());
    EXPECT_LE(static_cast<double>(packed->size_bytes()), 1.03 * static_cast<double>(bytes.size()))
        << WeightFormatName(format);
  }
}

TEST(PackedMatrix, RejectsSizesThatDoNotFit) {
  ThreadPool pool(1);
  const std::vector<std::byte> bytes(4 * 18);
  const auto pack = [&](const WeightView& view) {
    return PackedMatrix::Pack(view, ComputeType::kF32, pool);
  };
  const WeightView good = {.format = WeightFormat::kQ4_0, .rows = 4, .cols = 32, .data = bytes};
  EXPECT_TRUE(pack(good).has_value());
  WeightView bad = good;
  bad.cols = 48;
  EXPECT_EQ(pack(bad).error().code, ErrorCode::kInvalidInput);
  bad = good;
  bad.rows = 5;
  EXPECT_EQ(pack(bad).error().code, ErrorCode::kInvalidInput);
  bad = good;
  bad.rows = size_t{1} << 60;
  EXPECT_EQ(pack(bad).error().code, ErrorCode::kInvalidInput);
  const std::vector<uint32_t> order = {4};
  bad = good;
  bad.row_order = order;
  EXPECT_EQ(pack(bad).error().code, ErrorCode::kInvalidInput);
}

}  // namespace
}  // namespace kvik::tensor
