// SPDX-License-Identifier: Apache-2.0
// transfer/emulated_link.h: a link with a rate, a delay and faults, in user space: between the
// protocol and what really carries the bytes. Time is a Clock, chance a seed: under a manual clock
// everything about it repeats.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "transfer/byte_channel.h"
#include "transfer/link_spec.h"

namespace kvik::transfer {

// One direction's capacity, shared by all channels that go through it: bytes leave one after the
// other at the scheduled rate. Thread-safe.
class LinkCapacity;

// The cable of a machine: both directions. Channels of one link share its rates. Thread-safe.
class EmulatedLink {
 public:
  EmulatedLink(const LinkSpec& spec, const Clock& clock);
  ~EmulatedLink();
  EmulatedLink(const EmulatedLink&) = delete;
  EmulatedLink& operator=(const EmulatedLink&) = delete;

  enum class Direction { kBoth, kOut, kIn };
  // `inner` through this link: what is written (kOut), what is read (kIn), or both. The link is
  // kept alive by its channels. When both ends of a connection emulate, each takes kOut.
  static std::unique_ptr<ByteChannel> Wrap(std::shared_ptr<EmulatedLink> link,
                                           std::unique_ptr<ByteChannel> inner,
                                           Direction direction = Direction::kBoth);

  [[nodiscard]] const LinkSpec& spec() const { return spec_; }

 private:
  friend class EmulatedChannel;
  const LinkSpec spec_;
  const Clock& clock_;
  const int64_t start_us_;
  std::unique_ptr<LinkCapacity> out_;
  std::unique_ptr<LinkCapacity> in_;
  std::atomic<uint64_t> channels_{0};  // gives each channel its own chance
};

}  // namespace kvik::transfer
