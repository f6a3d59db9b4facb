// SPDX-License-Identifier: Apache-2.0
// workload/load_compare.h: two measured loads against each other, with what chance may have done.
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/rng.h"

namespace kvik::workload {

// What a result file keeps of a request.
struct RequestSample {
  int32_t session = 0;
  int32_t turn = 0;
  double ttft_ms = 0;
  std::optional<double> tpot_ms;
  double e2e_ms = 0;
  int32_t prompt_tokens = 0;
  std::optional<int32_t> cached_tokens;
};
struct JobSample {
  int32_t session = 0;
  double millis = 0;
};
struct LoadSamples {
  std::vector<RequestSample> requests;  // without failed ones and warm-up
  std::vector<JobSample> jobs;
};

struct CompareOptions {
  int32_t resamples = 2000;
  double confidence = 0.95;  // in (0, 1)
  uint64_t seed = 0;
};

struct MetricComparison {
  std::string metric;  // "ttft_ms mean"
  double a = 0;
  double b = 0;
  double ratio = 0;  // b over a
  double low = 0;    // of the interval of the ratio
  double high = 0;
  bool paired = false;  // the same requests were drawn on both sides
  int32_t samples = 0;  // pairs, or of the smaller side
};

// Percentile bootstrap (Efron, 1979) of the ratio of every statistic that both sides have. When the
// two have the same requests (session and turn; a tenth may be missing), pairs are drawn, which
// takes out what all runs share; else each side by itself. Metrics that a side has no samples of,
// or whose value for `a` is 0, are left out.
std::vector<MetricComparison> Compare(const LoadSamples& a, const LoadSamples& b,
                                      const CompareOptions& options);

// Lines for people, each ended.
std::string FormatComparison(const std::vector<MetricComparison>& metrics, double confidence);

}  // namespace kvik::workload
