// SPDX-License-Identifier: Apache-2.0
#include "eval/linear_algebra.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace kvik::eval {
namespace {

using Matrix = ::Eigen::Matrix<double, ::Eigen::Dynamic, ::Eigen::Dynamic, ::Eigen::RowMajor>;
using View = ::Eigen::Map<const Matrix>;

View ViewOf(std::span<const double> matrix, size_t n) {
  KVIK_CHECK(matrix.size() == n * n);
  const auto rows = static_cast<::Eigen::Index>(n);
  return {matrix.data(), rows, rows};
}

std::vector<double> Values(const Matrix& matrix) {
  return {matrix.data(), matrix.data() + matrix.size()};
}

SymmetricEigen Decompose(const Matrix& matrix) {
  const ::Eigen::SelfAdjointEigenSolver<Matrix> solver(matrix);
  KVIK_CHECK(solver.info() == ::Eigen::Success, "eigenvalues did not converge");
  const ::Eigen::Index n = matrix.rows();
  SymmetricEigen result;
  Matrix vectors(n, n);
  for (::Eigen::Index i = 0; i < n; ++i) {
    const ::Eigen::Index from = n - 1 - i;  // the solver's order is ascending
    result.values.push_back(solver.eigenvalues()[from]);
    vectors.row(i) = solver.eigenvectors().col(from).transpose();
    ::Eigen::Index largest = 0;
    vectors.row(i).cwiseAbs().maxCoeff(&largest);
    if (vectors(i, largest) < 0) {
      vectors.row(i) *= -1;
    }
  }
  result.vectors = Values(vectors);
  return result;
}

// A positive definite matrix as axes diag(scale)^2 axes'.
struct Root {
  Matrix axes;
  ::Eigen::VectorXd scale;

  [[nodiscard]] Matrix matrix() const { return axes * scale.asDiagonal() * axes.transpose(); }
  [[nodiscard]] Matrix inverse() const {
    return axes * scale.cwiseInverse().asDiagonal() * axes.transpose();
  }
};

// Of `metric` with its ridge; of the identity if it is zero.
Root RootOf(const View& metric, double ridge) {
  Matrix m = metric;
  const double mean = m.trace() / static_cast<double>(m.rows());
  const Matrix identity = Matrix::Identity(m.rows(), m.rows());
  m = mean > 0 ? Matrix(m / mean + ridge * identity) : identity;
  const ::Eigen::SelfAdjointEigenSolver<Matrix> solver(m);
  KVIK_CHECK(solver.info() == ::Eigen::Success, "eigenvalues did not converge");
  const double unit = mean > 0 ? mean : 1;
  return {solver.eigenvectors(), (solver.eigenvalues().cwiseMax(1e-12) * unit).cwiseSqrt()};
}

}  // namespace

SymmetricEigen Eigen(std::span<const double> matrix, size_t n) {
  return Decompose(ViewOf(matrix, n));
}

WeightedBasis MakeWeightedBasis(std::span<const double> covariance, std::span<const double> metric,
                                size_t n, double ridge) {
  const Root metric_root = RootOf(ViewOf(metric, n), ridge);
  const Matrix root = metric_root.matrix();
  const Matrix weighted = root * ViewOf(covariance, n) * root;
  const SymmetricEigen eigen = Decompose(weighted);
  const View basis = ViewOf(eigen.vectors, n);
  const Matrix forward = basis * root;
  const Matrix inverse = metric_root.inverse() * basis.transpose();
  WeightedBasis result;
  result.forward = Values(forward);
  result.inverse = Values(inverse);
  for (const double value : eigen.values) {
    result.variances.push_back(std::max(0.0, value));
  }
  return result;
}

// T = Q G^(1/2), where G minimises tr(M / G) under tr(G S) = n:
//   G = a S^(-1/2) (S^(1/2) M S^(1/2))^(1/2) S^(-1/2)
// and Q is orthogonal and spreads what comes in over all channels: the cosine transform, after the
// principal axes.
std::vector<double> MakeBalancedMap(std::span<const double> second_moments,
                                    std::span<const double> metric, size_t n, double ridge) {
  const Root s = RootOf(ViewOf(second_moments, n), ridge);
  const Matrix m = RootOf(ViewOf(metric, n), ridge).matrix();
  const Matrix s_root = s.matrix();
  // The root of a product with itself transposed, hence symmetric.
  const Matrix inner = s_root * m * m * s_root;
  const Matrix middle = RootOf(ViewOf(Values(inner), n), 0).matrix();
  const Matrix g = s.inverse() * middle * s.inverse();
  const Matrix root = RootOf(ViewOf(Values(g), n), 0).matrix();
  const Matrix out = root * ViewOf(second_moments, n) * root;
  const SymmetricEigen axes = Decompose(out);
  const auto extent = static_cast<::Eigen::Index>(n);
  Matrix spread(extent, extent);
  for (::Eigen::Index i = 0; i < extent; ++i) {
    for (::Eigen::Index j = 0; j < extent; ++j) {
      spread(i, j) = std::sqrt((i == 0 ? 1.0 : 2.0) / static_cast<double>(n)) *
                     std::cos(std::numbers::pi * static_cast<double>(i) *
                              (static_cast<double>(j) + 0.5) / static_cast<double>(n));
    }
  }
  // Columns of the transform belong to axes: each output has a share of every axis.
  const Matrix map = spread.transpose() * ViewOf(axes.vectors, n) * root;
  const double mean = out.trace() / static_cast<double>(n);
  return Values(map / std::sqrt(mean > 0 ? mean : 1));
}

}  // namespace kvik::eval
