// SPDX-License-Identifier: Apache-2.0
// workload/arrivals.h: when sessions of an open loop start. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvik::workload {

enum class ArrivalProcess { kPoisson, kGamma, kConstant };

struct ArrivalOptions {
  ArrivalProcess process = ArrivalProcess::kPoisson;
  double per_second = 1;
  double cv = 1;  // of the times between two starts; kGamma only
  uint64_t seed = 0;
};

// Seconds from the beginning, ascending; the first is 0. REQUIRES: per_second > 0, cv >= 0.
std::vector<double> ArrivalTimes(const ArrivalOptions& options, size_t count);

}  // namespace kvik::workload
