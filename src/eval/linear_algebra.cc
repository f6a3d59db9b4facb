// SPDX-License-Identifier: Apache-2.0
#include "eval/linear_algebra.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

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

std::vector<double> SymmetricRoot(std::span<const double> matrix, size_t n, double ridge) {
  return Values(RootOf(ViewOf(matrix, n), ridge).matrix());
}

}  // namespace kvik::eval
