// SPDX-License-Identifier: Apache-2.0
#include "workload/distributions.h"

#include <cmath>
#include <numbers>

#include "base/check.h"

namespace kvik::workload {
namespace {

// In (0, 1]: its logarithm is finite.
double Positive(Rng& rng) { return 1.0 - rng.Uniform(); }

}  // namespace

double DrawNormal(Rng& rng) {
  // Box and Muller, 1958; the second number is not kept, so that a draw has no state.
  const double radius = std::sqrt(-2.0 * std::log(Positive(rng)));
  return radius * std::cos(2.0 * std::numbers::pi * rng.Uniform());
}

double DrawLogNormal(Rng& rng, double mean, double sigma) {
  KVIK_CHECK(mean > 0 && sigma >= 0);
  return mean * std::exp(sigma * DrawNormal(rng) - sigma * sigma / 2);
}

double DrawGamma(Rng& rng, double mean, double cv) {
  KVIK_CHECK(mean > 0 && cv >= 0);
  if (cv == 0) {
    return mean;
  }
  const double shape = 1.0 / (cv * cv);
  // Marsaglia and Tsang, 2000. For shapes below 1: that of shape + 1, times u^(1 / shape).
  const double boost = shape < 1 ? std::pow(Positive(rng), 1.0 / shape) : 1.0;
  const double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3.0;
  const double c = 1.0 / std::sqrt(9.0 * d);
  for (;;) {
    const double x = DrawNormal(rng);
    const double root = 1.0 + c * x;
    if (root <= 0) {
      continue;
    }
    const double v = root * root * root;
    if (std::log(Positive(rng)) < 0.5 * x * x + d - d * v + d * std::log(v)) {
      return boost * d * v * mean / shape;
    }
  }
}

}  // namespace kvik::workload
