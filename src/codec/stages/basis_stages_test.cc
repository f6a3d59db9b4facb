// SPDX-License-Identifier: Apache-2.0
// klt, qklt and affine: matrices and scales from calibration.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/isa.h"
#include "base/rng.h"
#include "codec/stages/dense_matrix.h"
#include "codec/testing/made_transform.h"

namespace kvik::codec {
namespace {

using testing::MadeModel;
using testing::MadeTile;
using testing::MadeTransform;
using testing::Normal;

double Dot(const float* a, const float* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) {
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return sum;
}

struct Basis {
  const char* text;
  const char* tensor;
  bool orthogonal;
};

TEST(Bases, CoefficientsAreProductsWithTheCalibratedRows) {
  for (const Basis& basis :
       {Basis{"klt", "klt/k/", true}, Basis{"klt(share=0.5)", "klt/k/", true},
        Basis{"qklt", "qklt/k/", false}, Basis{"qklt(share=0.3)", "qklt/k/", false},
        Basis{"affine(kind=full)", "affine/k//full", false}}) {
    for (const size_t n : {16U, 50U, 64U, 100U}) {
      MadeTransform made(basis.text, MadeModel(2, 3, static_cast<int32_t>(n)), 1);
      made.SetRows(0, 53);
      Rng rng(7);
      const Tile tile = MadeTile(rng, 3, 53, static_cast<int32_t>(n));
      std::vector<std::byte> side;
      const auto forward = made.Forward(SupportedIsas().back(), tile, side);
      ASSERT_TRUE(forward);
      EXPECT_TRUE(side.empty());
      const auto kept = static_cast<size_t>(forward->channels);
      const SideTensor& tensor = *made.side_info.Find(basis.tensor);
      for (int32_t head = 0; head < 3; ++head) {
        const float* const rows = tensor.values.data() + static_cast<size_t>(3 + head) * n * n;
        for (size_t row = 0; row < 53; ++row) {
          const float* const x = tile.Head(head).data() + row * n;
          for (size_t j = 0; j < kept; ++j) {
            const float* const vector = rows + j * n;
            // What rounding to half has done to an orthogonal basis is undone.
            const double bound =
                std::sqrt(Dot(x, x, n) * Dot(vector, vector, n)) * (basis.orthogonal ? 2e-3 : 1e-6);
            ASSERT_NEAR(forward->Head(head)[row * kept + j], Dot(vector, x, n), bound)
                << basis.text << " " << n;
          }
        }
      }
    }
  }
}

// What a share of the coefficients gives back is the projection on the kept rows: the error is
// orthogonal to them.
TEST(Bases, AShareOfAnOrthogonalBasisProjects) {
  constexpr size_t kDim = 64;
  MadeTransform made("klt(share=0.25)", MadeModel(1, 1, kDim), 1);
  EXPECT_EQ(made.transform->Output({5, kDim}).channels, 16);
  made.SetRows(0, 100);
  Rng rng(7);
  const Tile tile = MadeTile(rng, 1, 100, kDim);
  std::vector<std::byte> side;
  const auto forward = made.Forward(Isa::kScalar, tile, side);
  ASSERT_TRUE(forward);
  const auto back = made.Inverse(Isa::kScalar, *forward, side);
  ASSERT_TRUE(back);
  const auto again = made.Forward(Isa::kScalar, *back, side);
  ASSERT_TRUE(again);
  for (size_t row = 0; row < 100; ++row) {
    const double length = std::sqrt(Dot(&tile.values[row * kDim], &tile.values[row * kDim], kDim));
    double error = 0;
    for (size_t c = 0; c < kDim; ++c) {
      error += std::pow(back->values[row * kDim + c] - tile.values[row * kDim + c], 2);
    }
    EXPECT_GT(std::sqrt(error), 0.1 * length);
    for (size_t j = 0; j < 16; ++j) {
      ASSERT_NEAR(again->values[row * 16 + j], forward->values[row * 16 + j], 1e-6 * length);
    }
  }
}

TEST(Bases, EveryShareKeepsAtLeastOneCoefficient) {
  MadeTransform made("klt(share=0)", MadeModel(1, 1, 64), 1);
  EXPECT_EQ(made.transform->Output({5, 64}).channels, 1);
}

TEST(Bases, ABasisThatSpansNothingIsRefused) {
  MadeTransform made("hadamard", MadeModel(1, 1, 8), 1);
  std::vector<float> matrix(64, 0.0F);
  for (size_t i = 0; i < 7; ++i) {
    matrix[i * 8 + i] = 1.0F;
  }
  matrix[7 * 8 + 0] = 1.0F;  // the last row is the first again
  for (const char* name : {"klt/k/", "qklt/k/", "affine/k//full"}) {
    ASSERT_TRUE(made.side_info.Add(name, {1, 1, 8, 8}, matrix));
  }
  for (const char* text : {"klt", "qklt", "affine(kind=full)"}) {
    const auto transform = made.TryMake(text);
    ASSERT_FALSE(transform) << text;
    EXPECT_EQ(transform.error().code, ErrorCode::kInvalidInput);
  }
  EXPECT_TRUE(made.TryMake("klt(share=0.875)"));  // the rows that count are fine
}

TEST(Affine, ScalesChannels) {
  MadeTransform made("affine", MadeModel(2, 2, 80), 1);
  made.SetRows(0, 9);
  Rng rng(7);
  const Tile tile = MadeTile(rng, 2, 9, 80);
  std::vector<std::byte> side;
  const auto forward = made.Forward(Isa::kScalar, tile, side);
  ASSERT_TRUE(forward);
  const SideTensor& scale = *made.side_info.Find("affine/k//diagonal");
  for (size_t i = 0; i < tile.size(); ++i) {
    const size_t head = i / (9 * 80);
    ASSERT_EQ(forward->values[i], tile.values[i] * scale.values[(2 + head) * 80 + i % 80]);
  }
}

TEST(Affine, ScalesMustBePositive) {
  MadeTransform made("hadamard", MadeModel(1, 1, 8), 1);
  for (const float bad : {0.0F, -0.5F, 1e-9F}) {  // the last one is 0 as a half
    std::vector<float> scales(8, 1.0F);
    scales[3] = bad;
    ASSERT_TRUE(made.side_info.Add("affine/k//diagonal", {1, 1, 8}, scales));
    const auto transform = made.TryMake("affine");
    ASSERT_FALSE(transform) << bad;
    EXPECT_EQ(transform.error().code, ErrorCode::kInvalidInput);
  }
}

TEST(DenseMatrix, InverseTimesMatrixIsOne) {
  for (const size_t n : {1U, 2U, 5U, 64U, 100U}) {
    Rng rng(n);
    std::vector<double> matrix(n * n);
    for (size_t i = 0; i < n * n; ++i) {
      matrix[i] = static_cast<double>(Normal(rng)) + (i % (n + 1) == n / 2 ? 20.0 : 0.0);
    }
    const auto inverse = Inverted(matrix, n);
    if (!inverse) {  // a random matrix may be ill-conditioned, and then says so
      EXPECT_NE(inverse.error().message.find("condition"), std::string::npos);
      continue;
    }
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        double sum = 0;
        for (size_t k = 0; k < n; ++k) {
          sum += matrix[i * n + k] * (*inverse)[k * n + j];
        }
        ASSERT_NEAR(sum, i == j ? 1.0 : 0.0, 1e-8) << n;
      }
    }
  }
}

TEST(DenseMatrix, InverseNeedsPivots) {
  const std::vector<double> swap = {0, 1, 1, 0};
  EXPECT_EQ(*Inverted(swap, 2), swap);
  EXPECT_FALSE(Inverted(std::vector<double>{1, 2, 2, 4}, 2));
  EXPECT_FALSE(Inverted(std::vector<double>{1, 0, 0, 1e-6}, 2));
  EXPECT_FALSE(Inverted(std::vector<double>{NAN, 0, 0, 1}, 2));
}

TEST(DenseMatrix, OrthonormalizeMovesLittle) {
  constexpr size_t kN = 96;
  Rng rng(3);
  const std::vector<float> basis = testing::MadeBases(rng, 1, kN);
  std::vector<double> rounded(basis.size());
  for (size_t i = 0; i < basis.size(); ++i) {
    rounded[i] = ToFloat(ToF16(basis[i]));
  }
  std::vector<double> fixed = rounded;
  ASSERT_TRUE(Orthonormalize(fixed, kN, kN));
  for (size_t i = 0; i < kN; ++i) {
    for (size_t j = 0; j < kN; ++j) {
      double dot = 0;
      for (size_t c = 0; c < kN; ++c) {
        dot += fixed[i * kN + c] * fixed[j * kN + c];
      }
      ASSERT_NEAR(dot, i == j ? 1.0 : 0.0, 1e-12);
      ASSERT_NEAR(fixed[i * kN + j], rounded[i * kN + j], 2e-3);
    }
  }
}

}  // namespace
}  // namespace kvik::codec
