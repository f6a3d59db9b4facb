// SPDX-License-Identifier: Apache-2.0
// base/progress.h: how long work shows that it advances: one redrawn line with a bar and the time
// left on a terminal, plain lines now and then when piped, nothing when quiet.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "base/clock.h"

namespace kvik {

// Thread-compatible. Always written to the stream given (standard error by default), so that
// standard output stays clean for results.
class Progress {
 public:
  enum class Mode {
    kAuto,   // kBar when the stream is a terminal, else kLines
    kBar,    // at most 10 redraws a second
    kLines,  // at the start, at every tenth of the total or 5 seconds, and at the end
    kQuiet,
  };
  enum class Unit { kCount, kBytes };

  struct Options {
    std::string label;
    uint64_t total = 0;  // 0 = unknown: no bar and no time left
    Unit unit = Unit::kCount;
    Mode mode = Mode::kAuto;
    std::FILE* stream = stderr;  // not owned
  };

  // Draws the start. `clock` must outlive the object.
  Progress(const Clock& clock, Options options);
  // As Finish, in case of an early return; the line then keeps the last state.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` of the total so far; may be called as often as convenient.
  void Update(uint64_t done);
  // Draws the last state and ends the line. Idempotent.
  void Finish();

 private:
  void DrawBar();
  void PrintLine();
  [[nodiscard]] int Tenths() const;
  [[nodiscard]] std::string Describe() const;

  const Clock& clock_;
  Options options_;
  int64_t start_us_;
  int64_t shown_us_ = 0;
  uint64_t done_ = 0;
  int shown_tenths_ = 0;
  bool finished_ = false;
};

// "0:07", "12:30", "3:04:05".
std::string FormatDuration(int64_t seconds);

}  // namespace kvik
