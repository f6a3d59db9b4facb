// SPDX-License-Identifier: Apache-2.0
// transfer/buffer.h: bytes that several may hold, and the messages of a stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"

namespace kvik::transfer {

// Immutable bytes and a share in whatever keeps them alive. Copies are cheap; nothing is copied but
// the share. Thread-compatible; the owner's deleter runs on the thread that drops the last share.
class SharedBytes {
 public:
  SharedBytes() = default;
  // `owner` keeps `bytes` alive and unchanged. It may be null for bytes that live for ever.
  SharedBytes(std::shared_ptr<const void> owner, std::span<const std::byte> bytes)
      : owner_(std::move(owner)), bytes_(bytes) {}
  static SharedBytes Own(std::vector<std::byte> bytes) {
    auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
    const std::span<const std::byte> view(*owner);
    return {std::move(owner), view};
  }

  [[nodiscard]] std::span<const std::byte> span() const { return bytes_; }
  [[nodiscard]] size_t size_bytes() const { return bytes_.size(); }
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  // REQUIRES: offset + size_bytes lie within.
  [[nodiscard]] SharedBytes Slice(size_t offset, size_t size_bytes) const {
    KVIK_CHECK(offset <= bytes_.size() && size_bytes <= bytes_.size() - offset);
    return {owner_, bytes_.subspan(offset, size_bytes)};
  }

 private:
  std::shared_ptr<const void> owner_;
  std::span<const std::byte> bytes_;
};

// What a stream carries, in order. `kind` and `tag` are the application's.
//
// A received message holds its part of the receiver's window until its bytes are dropped: keeping
// them is what slows the sender down.
struct Message {
  uint8_t kind = 0;
  uint32_t tag = 0;
  bool last = false;  // nothing follows from this side
  bool more = false;  // received: a part; the next message of the stream goes on with it
  SharedBytes bytes;
};

}  // namespace kvik::transfer
