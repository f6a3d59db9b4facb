// SPDX-License-Identifier: Apache-2.0
#include "codec/stages/dense_matrix.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace kvik::codec {
namespace {

// Four sums, added at the end: no chain of additions as long as the vectors.
double Dot(const double* a, const double* b, size_t n) {
  double sum[4] = {};
  size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (size_t j = 0; j < 4; ++j) {
      sum[j] += a[i + j] * b[i + j];
    }
  }
  for (; i < n; ++i) {
    sum[0] += a[i] * b[i];
  }
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

void AddScaled(double* to, const double* from, double factor, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    to[i] += from[i] * factor;
  }
}

// Largest sum of magnitudes of a row.
double Norm(std::span<const double> matrix, size_t n) {
  double norm = 0;
  for (size_t row = 0; row < n; ++row) {
    double sum = 0;
    for (const double v : matrix.subspan(row * n, n)) {
      sum += std::abs(v);
    }
    norm = std::max(norm, sum);
  }
  return norm;
}

}  // namespace

Result<void> Orthonormalize(std::span<double> matrix, size_t rows, size_t n) {
  KVIK_CHECK(matrix.size() >= rows * n && rows <= n);
  constexpr double kLeastShare = 0.1;  // of a row's length, that those before it do not explain
  for (size_t j = 0; j < rows; ++j) {
    double* const row = matrix.data() + j * n;
    const double length = std::sqrt(Dot(row, row, n));
    for (size_t i = 0; i < j; ++i) {
      const double* const before = matrix.data() + i * n;
      AddScaled(row, before, -Dot(row, before, n), n);
    }
    const double rest = std::sqrt(Dot(row, row, n));
    if (!(rest > kLeastShare * length)) {
      return Err(ErrorCode::kInvalidInput, "row %zu of a basis depends on the rows before it", j);
    }
    for (size_t i = 0; i < n; ++i) {
      row[i] /= rest;
    }
  }
  return {};
}

// Gauss and Jordan's elimination with row pivots.
Result<std::vector<double>> Inverted(std::span<const double> matrix, size_t n) {
  KVIK_CHECK(matrix.size() == n * n);
  constexpr double kWorstCondition = 1e5;
  std::vector<double> left(matrix.begin(), matrix.end());
  std::vector<double> right(n * n, 0.0);
  for (size_t i = 0; i < n; ++i) {
    right[i * n + i] = 1.0;
  }
  for (size_t column = 0; column < n; ++column) {
    size_t pivot = column;
    for (size_t row = column + 1; row < n; ++row) {
      if (std::abs(left[row * n + column]) > std::abs(left[pivot * n + column])) {
        pivot = row;
      }
    }
    const double value = left[pivot * n + column];
    if (!(std::abs(value) > 0.0)) {  // or not a number
      return Err(ErrorCode::kInvalidInput, "a matrix to be inverted is singular");
    }
    if (pivot != column) {
      std::swap_ranges(left.begin() + static_cast<ptrdiff_t>(pivot * n),
                       left.begin() + static_cast<ptrdiff_t>((pivot + 1) * n),
                       left.begin() + static_cast<ptrdiff_t>(column * n));
      std::swap_ranges(right.begin() + static_cast<ptrdiff_t>(pivot * n),
                       right.begin() + static_cast<ptrdiff_t>((pivot + 1) * n),
                       right.begin() + static_cast<ptrdiff_t>(column * n));
    }
    for (size_t i = 0; i < n; ++i) {
      left[column * n + i] /= value;
      right[column * n + i] /= value;
    }
    for (size_t row = 0; row < n; ++row) {
      const double factor = left[row * n + column];
      if (row != column && factor != 0.0) {
        // What is before the pivot is 0 already.
        AddScaled(left.data() + row * n + column, left.data() + column * n + column, -factor,
                  n - column);
        AddScaled(right.data() + row * n, right.data() + column * n, -factor, n);
      }
    }
  }
  const double condition = Norm(matrix, n) * Norm(right, n);
  if (!(condition <= kWorstCondition)) {
    return Err(ErrorCode::kInvalidInput,
               "a matrix has condition number %.3g; at most %.0e is exact", condition,
               kWorstCondition);
  }
  return right;
}

}  // namespace kvik::codec
