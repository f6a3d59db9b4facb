// SPDX-License-Identifier: Apache-2.0
// codec/stages/dense_matrix.h: small square matrices in double, for making stages ready. Plain
// arithmetic in a fixed order: the same bits on every host. Row-major, [n, n].
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/result.h"

namespace kvik::codec {

// Makes the first `rows` rows of `matrix` [rows, n] orthonormal, in order (Gram-Schmidt), moving
// each as little as that takes. kInvalidInput: a row is (almost) a combination of those before it.
Result<void> Orthonormalize(std::span<double> matrix, size_t rows, size_t n);

// The inverse. kInvalidInput: singular, or so nearly that values would come back with errors that
// matter (condition number in the maximum norm above 1e5).
Result<std::vector<double>> Inverted(std::span<const double> matrix, size_t n);

}  // namespace kvik::codec
