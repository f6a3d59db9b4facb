// SPDX-License-Identifier: Apache-2.0
#include "eval/linear_algebra.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"

namespace kvik::eval {
namespace {

constexpr uint64_t kSeed = 31;

// a b', [n, n] each.
std::vector<double> TimesTransposed(const std::vector<double>& a, const std::vector<double>& b,
                                    size_t n) {
  std::vector<double> product(n * n);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      for (size_t k = 0; k < n; ++k) {
        product[i * n + j] += a[i * n + k] * b[j * n + k];
      }
    }
  }
  return product;
}

std::vector<double> Transposed(const std::vector<double>& a, size_t n) {
  std::vector<double> result(n * n);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      result[j * n + i] = a[i * n + j];
    }
  }
  return result;
}

std::vector<double> Times(const std::vector<double>& a, const std::vector<double>& b, size_t n) {
  return TimesTransposed(a, Transposed(b, n), n);
}

// x x' of a random x [n, rank], so of that rank.
std::vector<double> RandomSymmetric(Rng& rng, size_t n, size_t rank) {
  std::vector<double> x(n * n);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < rank; ++j) {
      x[i * n + j] = rng.Uniform() * 2 - 1;
    }
  }
  return TimesTransposed(x, x, n);
}

void ExpectNear(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_NEAR(a[i], b[i], tolerance) << "at " << i << " seed " << kSeed;
  }
}

std::vector<double> Identity(size_t n) {
  std::vector<double> result(n * n);
  for (size_t i = 0; i < n; ++i) {
    result[i * n + i] = 1;
  }
  return result;
}

TEST(LinearAlgebra, EigenvectorsRebuildTheMatrix) {
  Rng rng(kSeed);
  for (const size_t n : {1U, 2U, 5U, 24U}) {
    const std::vector<double> matrix = RandomSymmetric(rng, n, n);
    const SymmetricEigen eigen = Eigen(matrix, n);
    ExpectNear(TimesTransposed(eigen.vectors, eigen.vectors, n), Identity(n), 1e-10);
    std::vector<double> scaled = eigen.vectors;
    for (size_t i = 0; i < n; ++i) {
      if (i > 0) {
        EXPECT_LE(eigen.values[i], eigen.values[i - 1]);
      }
      for (size_t j = 0; j < n; ++j) {
        scaled[i * n + j] *= eigen.values[i];
      }
    }
    const std::vector<double> columns = Transposed(eigen.vectors, n);
    ExpectNear(Times(columns, scaled, n), matrix, 1e-10);
  }
}

TEST(LinearAlgebra, AWeightedBasisDecorrelatesAndEqualisesCosts) {
  Rng rng(kSeed, 1);
  constexpr size_t kN = 12;
  const std::vector<double> covariance = RandomSymmetric(rng, kN, kN);
  const std::vector<double> metric = RandomSymmetric(rng, kN, kN);
  const WeightedBasis basis = MakeWeightedBasis(covariance, metric, kN, 1e-12);
  ExpectNear(Times(basis.forward, basis.inverse, kN), Identity(kN), 1e-6);
  // Covariance of the coefficients: forward C forward', the variances on its diagonal.
  const std::vector<double> of_coefficients =
      TimesTransposed(Times(basis.forward, covariance, kN), basis.forward, kN);
  for (size_t i = 0; i < kN; ++i) {
    for (size_t j = 0; j < kN; ++j) {
      EXPECT_NEAR(of_coefficients[i * kN + j], i == j ? basis.variances[i] : 0.0, 1e-7);
    }
  }
  // The cost of an error y of the coefficients: y' inverse' M inverse y = y' y.
  const std::vector<double> inverse_columns = Transposed(basis.inverse, kN);
  const std::vector<double> cost =
      TimesTransposed(Times(inverse_columns, metric, kN), inverse_columns, kN);
  ExpectNear(cost, Identity(kN), 1e-6);
}

TEST(LinearAlgebra, DirectionsThatCostNothingAreKeptAllTheSame) {
  Rng rng(kSeed, 2);
  constexpr size_t kN = 8;
  const std::vector<double> covariance = RandomSymmetric(rng, kN, kN);
  for (const size_t rank : {0U, 1U, 3U}) {
    const WeightedBasis basis =
        MakeWeightedBasis(covariance, RandomSymmetric(rng, kN, rank), kN, 0.01);
    ExpectNear(Times(basis.forward, basis.inverse, kN), Identity(kN), 1e-9);
  }
  // Without a metric it is the plain one.
  const WeightedBasis plain = MakeWeightedBasis(covariance, std::vector<double>(kN * kN), kN, 0.01);
  ExpectNear(TimesTransposed(plain.forward, plain.forward, kN), Identity(kN), 1e-9);
  ExpectNear(plain.variances, Eigen(covariance, kN).values, 1e-9);
}

double Trace(const std::vector<double>& matrix, size_t n) {
  double trace = 0;
  for (size_t i = 0; i < n; ++i) {
    trace += matrix[i * n + i];
  }
  return trace;
}

// What equal errors in all outputs of `map` cost, if its outputs have a mean square of 1 on
// average.
double CostOfMap(const std::vector<double>& map, const std::vector<double>& second_moments,
                 const std::vector<double>& metric, size_t n) {
  const double scale = Trace(TimesTransposed(Times(map, second_moments, n), map, n), n);
  // tr(M inverse(map' map)), by the eigenvalues of map' map.
  const SymmetricEigen gram = Eigen(Times(Transposed(map, n), map, n), n);
  double cost = 0;
  for (size_t k = 0; k < n; ++k) {
    double form = 0;
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        form += gram.vectors[k * n + i] * metric[i * n + j] * gram.vectors[k * n + j];
      }
    }
    cost += form / gram.values[k];
  }
  return cost * scale;
}

TEST(LinearAlgebra, ABalancedMapCostsLeast) {
  Rng rng(kSeed, 3);
  constexpr size_t kN = 8;
  const std::vector<double> second_moments = RandomSymmetric(rng, kN, kN);
  const std::vector<double> metric = RandomSymmetric(rng, kN, kN);
  const std::vector<double> map = MakeBalancedMap(second_moments, metric, kN, 1e-9);
  const std::vector<double> out = TimesTransposed(Times(map, second_moments, kN), map, kN);
  EXPECT_NEAR(Trace(out, kN), kN, 1e-6);
  for (size_t i = 0; i < kN; ++i) {
    EXPECT_LT(out[i * kN + i], 2.1);
  }
  const double cost = CostOfMap(map, second_moments, metric, kN);
  EXPECT_LT(cost, CostOfMap(Identity(kN), second_moments, metric, kN));
  for (int i = 0; i < 20; ++i) {
    std::vector<double> other = map;
    for (double& value : other) {
      value += 0.05 * (rng.Uniform() - 0.5);
    }
    EXPECT_LE(cost, CostOfMap(other, second_moments, metric, kN) * (1 + 1e-9));
  }
}

}  // namespace
}  // namespace kvik::eval
