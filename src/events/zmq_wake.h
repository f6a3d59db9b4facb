// SPDX-License-Identifier: Apache-2.0
// events/zmq_wake.h: wakes a thread that polls sockets of ZeroMQ, and other odds and ends of both
// sides. For the .cc files of this module only.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <span>
#include <string>

#include "base/check.h"

namespace kvik::events {

class WakeFd {
 public:
  WakeFd() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    KVIK_CHECK(fd_ >= 0, "no file descriptor is left");
  }
  ~WakeFd() { close(fd_); }
  WakeFd(const WakeFd&) = delete;
  WakeFd& operator=(const WakeFd&) = delete;

  [[nodiscard]] int fd() const { return fd_; }
  // Any thread.
  void Wake() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof one);
  }
  void Drain() const {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(fd_, &count, sizeof count);
  }

 private:
  const int fd_;
};

// Whether a socket has to be told that its endpoint is one of IPv6.
inline bool IsIpv6(const std::string& endpoint) { return endpoint.find('[') != std::string::npos; }

inline void PutBigEndian(uint64_t value, std::span<uint8_t, 8> bytes) {
  for (size_t i = 8; i-- > 0; value >>= 8) {
    bytes[i] = static_cast<uint8_t>(value);
  }
}

inline uint64_t GetBigEndian(std::span<const uint8_t, 8> bytes) {
  uint64_t value = 0;
  for (const uint8_t byte : bytes) {
    value = value << 8 | byte;
  }
  return value;
}

}  // namespace kvik::events
