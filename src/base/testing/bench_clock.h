// SPDX-License-Identifier: Apache-2.0
// base/testing/bench_clock.h: the clock of a benchmark.
#pragma once

#include <cstdint>
#include <ctime>

#include "base/clock.h"

namespace kvik::testing {

// Wall time, or the time that the calling thread ran: on a machine with other work the latter
// repeats better. Thread-safe.
class BenchClock final : public Clock {
 public:
  explicit BenchClock(bool cpu_time) : id_(cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC) {}

  [[nodiscard]] double NowSeconds() const {
    timespec t = {};
    clock_gettime(id_, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  }
  [[nodiscard]] int64_t NowMicros() const override {
    return static_cast<int64_t>(NowSeconds() * 1e6);
  }

 private:
  clockid_t id_;
};

}  // namespace kvik::testing
