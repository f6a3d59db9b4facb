// SPDX-License-Identifier: Apache-2.0
// transfer/testing/faulty_channel.h: a channel on which things go wrong, where and when a test
// says.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transfer/byte_channel.h"

namespace kvik::transfer::testing {

// What goes wrong, by offset in the bytes that are read through the channel. A test may change it
// at any time. Thread-compatible.
struct Faults {
  static constexpr size_t kNowhere = std::numeric_limits<size_t>::max();
  size_t largest_read = kNowhere;
  size_t largest_write = kNowhere;
  size_t flip_at = kNowhere;  // a bit of this byte is the other one
  unsigned flip_bit = 0;
  size_t end_at = kNowhere;     // the peer closes, in order
  size_t reset_at = kNowhere;   // the connection breaks
  size_t freeze_at = kNowhere;  // nothing comes any more, and nothing is said
  bool frozen = false;          // both directions
};

class FaultyChannel final : public ByteChannel {
 public:
  FaultyChannel(std::unique_ptr<ByteChannel> inner, std::shared_ptr<Faults> faults)
      : inner_(std::move(inner)), faults_(std::move(faults)) {}

  Result<size_t> Write(std::span<const iovec> parts) override {
    if (read_ >= faults_->reset_at) {
      return Err(ErrorCode::kUnavailable, "reset by the test");
    }
    if (faults_->frozen) {
      return size_t{0};
    }
    return inner_->Write(Cut(parts, faults_->largest_write));
  }

  Result<size_t> Read(std::span<const iovec> parts) override {
    if (read_ >= faults_->reset_at) {
      inner_->Close();
      return Err(ErrorCode::kUnavailable, "reset by the test");
    }
    if (read_ >= faults_->end_at) {
      return Err(ErrorCode::kUnavailable, "closed by the test");
    }
    if (faults_->frozen || read_ >= faults_->freeze_at) {
      return size_t{0};
    }
    const size_t limit = std::min({faults_->largest_read, faults_->reset_at - read_,
                                   faults_->end_at - read_, faults_->freeze_at - read_});
    const auto cut = Cut(parts, limit);
    KVIK_ASSIGN(const size_t size, inner_->Read(cut));
    if (faults_->flip_at >= read_ && faults_->flip_at - read_ < size) {
      size_t offset = faults_->flip_at - read_;
      for (const iovec& part : cut) {
        if (offset < part.iov_len) {
          static_cast<std::byte*>(part.iov_base)[offset] ^=
              std::byte{static_cast<unsigned char>(1U << faults_->flip_bit)};
          break;
        }
        offset -= part.iov_len;
      }
    }
    read_ += size;
    return size;
  }

  size_t BacklogBytes() override { return inner_->BacklogBytes(); }
  [[nodiscard]] int fd() const override { return inner_->fd(); }
  void SetWake(std::function<void()> wake) override { inner_->SetWake(std::move(wake)); }
  [[nodiscard]] std::string PeerName() const override { return inner_->PeerName(); }
  void Close() override { inner_->Close(); }

 private:
  std::span<const iovec> Cut(std::span<const iovec> parts, size_t limit) {
    cut_.clear();
    for (iovec part : parts) {
      part.iov_len = std::min(part.iov_len, limit);
      limit -= part.iov_len;
      if (part.iov_len > 0) {
        cut_.push_back(part);
      }
    }
    return cut_;
  }

  const std::unique_ptr<ByteChannel> inner_;
  const std::shared_ptr<Faults> faults_;
  std::vector<iovec> cut_;
  size_t read_ = 0;
};

}  // namespace kvik::transfer::testing
