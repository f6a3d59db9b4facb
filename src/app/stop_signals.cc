// SPDX-License-Identifier: Apache-2.0
#include "app/stop_signals.h"

#include <csignal>
#include <ctime>

namespace kvik::app {

StopSignals::StopSignals() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  // A file that may not grow (ulimit -f) is a failed write, as a full disk is, and not the end.
  static_cast<void>(std::signal(SIGXFSZ, SIG_IGN));
}

bool StopSignals::Wait(const std::atomic<bool>& until, const std::function<void()>& meanwhile) {
  while (!until) {
    const timespec patience{0, 50'000'000};
    if (sigtimedwait(&signals_, nullptr, &patience) > 0) {
      return true;
    }
    meanwhile();
  }
  return false;
}

}  // namespace kvik::app
