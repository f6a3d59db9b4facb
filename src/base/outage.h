// SPDX-License-Identifier: Apache-2.0
// base/outage.h: says in the log when something that is done without stops working, and when it
// works again: once each, however many calls fail. Thread-safe.
#pragma once

#include <atomic>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/result.h"

namespace kvik {

class Outage {
 public:
  // "pool kvik://10.0.0.7:7711".
  explicit Outage(std::string what) : what_(std::move(what)) {}

  void Failed(const Error& error) {
    if (!away_.exchange(true)) {
      LogWarning("%s does not work, and is done without: %s", what_.c_str(), error.message.c_str());
    }
  }
  void Worked() {
    if (away_.load(std::memory_order_relaxed) && away_.exchange(false)) {
      LogInfo("%s works again", what_.c_str());
    }
  }

 private:
  const std::string what_;
  std::atomic<bool> away_{false};
};

}  // namespace kvik
