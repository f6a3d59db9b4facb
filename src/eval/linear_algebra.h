// SPDX-License-Identifier: Apache-2.0
// eval/linear_algebra.h: what calibration needs of symmetric matrices. Matrices are [n, n] float64,
// row-major. Pure functions; the same input gives the same bits on one build.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace kvik::eval {

struct SymmetricEigen {
  std::vector<double> values;   // descending
  std::vector<double> vectors;  // [n, n]: row i belongs to value i; unit length, largest entry > 0
};

// REQUIRES: matrix.size() == n * n; only its lower triangle is read.
SymmetricEigen Eigen(std::span<const double> matrix, size_t n);

// A basis fit for coding vectors of covariance C when the error e costs e' M e: coefficients
// y = forward x are uncorrelated, and what costs 1 in x is an error of length 1 in y, whatever its
// direction. So one step for all coefficients is best.
struct WeightedBasis {
  std::vector<double> forward;    // [n, n]: row i gives coefficient i
  std::vector<double> inverse;    // [n, n]: x = inverse y
  std::vector<double> variances;  // of the coefficients, descending
};
// `metric` is symmetric; `ridge` > 0 times its mean eigenvalue is added to it, so that directions
// nobody looks at are kept all the same. With a metric of zeros: the plain basis of C.
WeightedBasis MakeWeightedBasis(std::span<const double> covariance, std::span<const double> metric,
                                size_t n, double ridge);

// A matrix before a quantizer whose step follows from the largest of all channels: with the second
// moments S of what comes in, the mean square of every channel of T x is 1, and errors of equal
// size in all of them cost least of all such T, when the error e of x costs e' M e. [n, n], y = T
// x. `ridge` as above, for both.
std::vector<double> MakeBalancedMap(std::span<const double> second_moments,
                                    std::span<const double> metric, size_t n, double ridge);

}  // namespace kvik::eval
