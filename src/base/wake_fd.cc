// SPDX-License-Identifier: Apache-2.0
#include "base/wake_fd.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

namespace kvik {

WakeFd::WakeFd() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

WakeFd::~WakeFd() {
  if (valid()) {
    close(fd_);
  }
}

// Either fails only when it has nothing to do: the counter is full, or is 0.
void WakeFd::Wake() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof one);
}

void WakeFd::Drain() const {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(fd_, &count, sizeof count);
}

}  // namespace kvik
