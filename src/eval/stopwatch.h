// SPDX-License-Identifier: Apache-2.0
// eval/stopwatch.h: how long a block of code takes, added up over all the times it runs.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace kvik::eval {

// Adds the time of its life to a counter.
class Stopwatch {
 public:
  Stopwatch(const Clock& clock, int64_t& total_us)
      : clock_(clock), total_us_(total_us), start_us_(clock.NowMicros()) {}
  ~Stopwatch() { total_us_ += clock_.NowMicros() - start_us_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  const Clock& clock_;
  int64_t& total_us_;
  int64_t start_us_;
};

}  // namespace kvik::eval
