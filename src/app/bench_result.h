// SPDX-License-Identifier: Apache-2.0
// app/bench_result.h: results of kvik bench as JSON: for standard output, and in files that two
// runs are compared from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "workload/load_compare.h"
#include "workload/load_report.h"

namespace kvik::app {

struct BenchSummary {
  std::string workload;
  std::string model;
  std::string base_url;
  uint64_t seed = 0;
  workload::LoadReport report;
  int32_t left_out = 0;                      // planned calls that were too long
  std::optional<int32_t> differing_outputs;  // none = nothing was compared
};

// The summary as one indented JSON object.
std::string SummaryJson(const BenchSummary& summary);

// {"summary", "samples": one object a measured request, "sessions": one a finished session}.
Result<void> SaveResult(const std::string& path, const BenchSummary& summary,
                        const std::vector<workload::RequestRecord>& records);
// What SaveResult wrote. kInvalidInput says what is missing.
Result<workload::LoadSamples> LoadResult(const std::string& path);

std::string ComparisonJson(const std::vector<workload::MetricComparison>& metrics);

}  // namespace kvik::app
