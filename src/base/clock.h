// SPDX-License-Identifier: Apache-2.0
// base/clock.h: time as a dependency. Production passes SystemClock, tests and the simulator a
// ManualClock; nothing else in kvik reads the time.
#pragma once

#include <atomic>
#include <cstdint>

namespace kvik {

class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic microseconds from an arbitrary start. Thread-safe.
  [[nodiscard]] virtual int64_t NowMicros() const = 0;
};

class SystemClock final : public Clock {
 public:
  [[nodiscard]] int64_t NowMicros() const override;
};

// What the calling thread has computed, whoever else has had its core meanwhile: for timing work on
// a machine that is not idle.
class ThreadCpuClock final : public Clock {
 public:
  [[nodiscard]] int64_t NowMicros() const override;
};

// Stands still until told. Thread-safe.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(int64_t start_us = 0) : now_us_(start_us) {}
  [[nodiscard]] int64_t NowMicros() const override { return now_us_.load(); }
  void Advance(int64_t delta_us) { now_us_ += delta_us; }
  void Set(int64_t now_us) { now_us_ = now_us; }

 private:
  std::atomic<int64_t> now_us_;
};

}  // namespace kvik
