// SPDX-License-Identifier: Apache-2.0
// base/wake_fd.h: wakes a thread that waits in poll, epoll or the like: a descriptor that is
// readable from Wake until Drain.
#pragma once

namespace kvik {

class WakeFd {
 public:
  // Check valid(): there may be no descriptor left.
  WakeFd();
  ~WakeFd();
  WakeFd(const WakeFd&) = delete;
  WakeFd& operator=(const WakeFd&) = delete;

  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  [[nodiscard]] int fd() const { return fd_; }  // to poll for reading; -1 when not valid
  // Any thread, also a signal handler: neither waits nor allocates. Nothing when not valid.
  void Wake() const;
  // Takes back all wake-ups there were; does not wait for one.
  void Drain() const;

 private:
  const int fd_;
};

}  // namespace kvik
