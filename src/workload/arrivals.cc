// SPDX-License-Identifier: Apache-2.0
#include "workload/arrivals.h"

#include "base/check.h"
#include "base/rng.h"
#include "workload/distributions.h"

namespace kvik::workload {

std::vector<double> ArrivalTimes(const ArrivalOptions& options, size_t count) {
  KVIK_CHECK(options.per_second > 0 && options.cv >= 0);
  const double cv = options.process == ArrivalProcess::kPoisson    ? 1
                    : options.process == ArrivalProcess::kConstant ? 0
                                                                   : options.cv;
  Rng rng(options.seed, /*stream=*/0x6172726976616C);
  std::vector<double> times;
  double now_s = 0;
  for (size_t i = 0; i < count; ++i) {
    times.push_back(now_s);
    now_s += DrawGamma(rng, 1 / options.per_second, cv);
  }
  return times;
}

}  // namespace kvik::workload
