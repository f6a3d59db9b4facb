// SPDX-License-Identifier: Apache-2.0
// base/testing/median.h: the middle one of repeated measurements.
#pragma once

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace kvik::testing {

// The upper of the two middle values when there are two. REQUIRES: at least one value.
inline double Median(std::vector<double> values) {
  KVIK_CHECK(!values.empty());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace kvik::testing
