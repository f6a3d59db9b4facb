// SPDX-License-Identifier: Apache-2.0
// kv/gap_histogram.h: times between uses of a block, by their logarithm, forgotten slowly.
//
// 16 bins an octave from 1 ms to a year: a quantile is at most 4.5 % too high. Fixed memory.
// Thread-compatible.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/result.h"

namespace kvik::kv {

class GapHistogram {
 public:
  void Add(int64_t gap_us, int64_t count);
  // Multiplies what was seen so far.
  void Decay(double factor);
  // The upper edge of the bin the quantile lies in. REQUIRES: num_samples() > 0, 0 < q <= 1.
  [[nodiscard]] double QuantileSeconds(double q) const;
  // Ever added, not decayed.
  [[nodiscard]] int64_t num_samples() const { return num_samples_; }

  // The bins that hold something, as (bin, weight), ascending; to be restored by the same version.
  using Bins = std::vector<std::pair<int64_t, double>>;
  [[nodiscard]] Bins bins() const;
  // kInvalidInput, with nothing changed, for what bins() and num_samples() cannot have said.
  Result<void> Restore(const Bins& bins, int64_t num_samples);

 private:
  static constexpr int kBinsPerOctave = 16;
  static constexpr double kLeastUs = 1000;
  static constexpr int kBins = 35 * kBinsPerOctave;

  std::array<double, kBins> weight_{};
  double total_ = 0;
  int64_t num_samples_ = 0;
};

}  // namespace kvik::kv
