// SPDX-License-Identifier: Apache-2.0
#include "kv/gap_histogram.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace kvik::kv {

void GapHistogram::Add(int64_t gap_us, int64_t count) {
  KVIK_CHECK(gap_us >= 0 && count >= 0);
  const double octaves = std::log2(std::max(static_cast<double>(gap_us) / kLeastUs, 1.0));
  const int bin = std::min(static_cast<int>(octaves * kBinsPerOctave), kBins - 1);
  weight_[static_cast<size_t>(bin)] += static_cast<double>(count);
  total_ += static_cast<double>(count);
  num_samples_ += count;
}

void GapHistogram::Decay(double factor) {
  total_ = 0;
  for (double& weight : weight_) {
    weight *= factor;
    total_ += weight;
  }
}

double GapHistogram::QuantileSeconds(double q) const {
  KVIK_CHECK(num_samples_ > 0 && q > 0 && q <= 1);
  double below = 0;
  int bin = 0;
  for (; bin < kBins - 1; ++bin) {
    below += weight_[static_cast<size_t>(bin)];
    if (below >= q * total_) {
      break;
    }
  }
  return kLeastUs * 1e-6 * std::exp2(static_cast<double>(bin + 1) / kBinsPerOctave);
}

}  // namespace kvik::kv
