// SPDX-License-Identifier: Apache-2.0
// app/stop_signals.h: SIGTERM and SIGINT, delivered to whoever asks instead of ending the process.
#pragma once

#include <signal.h>

#include <atomic>
#include <functional>

namespace kvik::app {

// Make one on the main thread before others are started: it blocks both signals in the whole
// process.
class StopSignals {
 public:
  StopSignals();
  // Waits until one comes or `until` turns true; true if one came. Calls `meanwhile` every now and
  // then.
  bool Wait(
      const std::atomic<bool>& until, const std::function<void()>& meanwhile = [] {});

 private:
  sigset_t signals_;
};

}  // namespace kvik::app
