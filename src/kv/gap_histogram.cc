// SPDX-License-Identifier: Apache-2.0
#include "kv/gap_histogram.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace kvik::kv {
namespace {

constexpr double kMaxWeight = 1e15;  // sums of all bins stay exact enough

}  // namespace

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

GapHistogram::Bins GapHistogram::bins() const {
  Bins bins;
  for (int bin = 0; bin < kBins; ++bin) {
    if (weight_[static_cast<size_t>(bin)] > 0) {
      bins.emplace_back(bin, weight_[static_cast<size_t>(bin)]);
    }
  }
  return bins;
}

Result<void> GapHistogram::Restore(const Bins& bins, int64_t num_samples) {
  GapHistogram restored;
  restored.num_samples_ = num_samples;
  int64_t last = -1;
  for (const auto& [bin, weight] : bins) {
    if (bin <= last || bin >= kBins || !(weight > 0 && weight <= kMaxWeight)) {
      return Err(ErrorCode::kInvalidInput, "a gap of bin %lld with weight %g",
                 static_cast<long long>(bin), weight);
    }
    restored.weight_[static_cast<size_t>(bin)] = weight;
    restored.total_ += weight;
    last = bin;
  }
  if (num_samples < 0 || (num_samples > 0) != (restored.total_ > 0)) {
    return Err(ErrorCode::kInvalidInput, "%lld samples of gaps do not fit their weights",
               static_cast<long long>(num_samples));
  }
  *this = restored;
  return {};
}

}  // namespace kvik::kv
