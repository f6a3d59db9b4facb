// SPDX-License-Identifier: Apache-2.0
// transfer/byte_channel.h: the seam between the protocol and what carries its bytes: a reliable,
// ordered stream of bytes in both directions. Sockets, the in-process loopback, emulated links and
// the faulty channels of tests are all of this form.
//
// Nothing here waits. Thread-compatible: one thread owns a channel; `wake` functions may be called
// by any.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>

#include "base/result.h"

namespace kvik::transfer {

inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

class ByteChannel {
 public:
  virtual ~ByteChannel() = default;

  // Takes bytes from the front of `parts`; how many. 0: there is no room now.
  // kUnavailable: the connection is gone.
  [[nodiscard]] virtual Result<size_t> Write(std::span<const iovec> parts) = 0;

  // Fills `parts` from the front; how many bytes. 0: nothing is there now. kUnavailable: the peer
  // has closed, or the connection is gone; bytes that arrived before were given out first.
  [[nodiscard]] virtual Result<size_t> Read(std::span<const iovec> parts) = 0;

  // Bytes that Write took and that have not left this machine (for an emulated link: not entered
  // it): whether what is written next follows back to back.
  [[nodiscard]] virtual size_t BacklogBytes() = 0;

  // When to try again although nobody will wake or poll: emulated links deliver by the clock.
  [[nodiscard]] virtual int64_t NextEventMicros() { return kNever; }

  // What to poll, or -1; then `wake` is called whenever Read or Write may do more.
  [[nodiscard]] virtual int fd() const = 0;
  virtual void SetWake(std::function<void()> wake) = 0;

  // "127.0.0.1:4711", "loopback", for messages.
  [[nodiscard]] virtual std::string PeerName() const = 0;

  // Ends both directions now; what was not delivered may be lost. Idempotent.
  virtual void Close() = 0;
};

}  // namespace kvik::transfer
