// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <chrono>

namespace kvik {

int64_t SystemClock::NowMicros() const {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace kvik
