// SPDX-License-Identifier: Apache-2.0
#include "transfer/loopback.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace kvik::transfer {
namespace {

// One direction: a ring of bytes between a writer and a reader.
class Pipe {
 public:
  explicit Pipe(size_t capacity_bytes) : ring_(capacity_bytes) {}

  size_t Write(std::span<const iovec> parts) KVIK_EXCLUDES(mutex_) {
    size_t written = 0;
    std::function<void()> wake;
    {
      MutexLock lock(mutex_);
      for (const iovec& part : parts) {
        const auto* from = static_cast<const std::byte*>(part.iov_base);
        size_t rest = std::min(part.iov_len, ring_.size() - size_);
        written += rest;
        while (rest > 0) {
          const size_t at = (begin_ + size_) % ring_.size();
          const size_t run = std::min(rest, ring_.size() - at);
          std::memcpy(ring_.data() + at, from, run);
          from += run;
          size_ += run;
          rest -= run;
        }
      }
      wake = written > 0 ? reader_wake_ : nullptr;
    }
    if (wake) {
      wake();
    }
    return written;
  }

  // Nothing: the pipe is empty and closed.
  std::optional<size_t> Read(std::span<const iovec> parts) KVIK_EXCLUDES(mutex_) {
    size_t read = 0;
    std::function<void()> wake;
    {
      MutexLock lock(mutex_);
      if (size_ == 0 && closed_) {
        return std::nullopt;
      }
      for (const iovec& part : parts) {
        auto* to = static_cast<std::byte*>(part.iov_base);
        size_t rest = std::min(part.iov_len, size_);
        read += rest;
        while (rest > 0) {
          const size_t run = std::min(rest, ring_.size() - begin_);
          std::memcpy(to, ring_.data() + begin_, run);
          to += run;
          begin_ = (begin_ + run) % ring_.size();
          size_ -= run;
          rest -= run;
        }
      }
      wake = read > 0 ? writer_wake_ : nullptr;
    }
    if (wake) {
      wake();
    }
    return read;
  }

  void Close() KVIK_EXCLUDES(mutex_) {
    std::function<void()> reader;
    std::function<void()> writer;
    {
      MutexLock lock(mutex_);
      closed_ = true;
      reader = reader_wake_;
      writer = writer_wake_;
    }
    if (reader) {
      reader();
    }
    if (writer) {
      writer();
    }
  }

  [[nodiscard]] bool closed() KVIK_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return closed_;
  }
  [[nodiscard]] size_t size_bytes() KVIK_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return size_;
  }
  void SetWake(bool reader, std::function<void()> wake) KVIK_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    (reader ? reader_wake_ : writer_wake_) = std::move(wake);
  }

 private:
  Mutex mutex_;
  std::vector<std::byte> ring_ KVIK_GUARDED_BY(mutex_);
  size_t begin_ KVIK_GUARDED_BY(mutex_) = 0;
  size_t size_ KVIK_GUARDED_BY(mutex_) = 0;
  bool closed_ KVIK_GUARDED_BY(mutex_) = false;
  std::function<void()> reader_wake_ KVIK_GUARDED_BY(mutex_);
  std::function<void()> writer_wake_ KVIK_GUARDED_BY(mutex_);
};

class LoopbackChannel final : public ByteChannel {
 public:
  LoopbackChannel(std::shared_ptr<Pipe> in, std::shared_ptr<Pipe> out)
      : in_(std::move(in)), out_(std::move(out)) {}
  ~LoopbackChannel() override {
    LoopbackChannel::SetWake(nullptr);
    LoopbackChannel::Close();
  }

  Result<size_t> Write(std::span<const iovec> parts) override {
    if (out_->closed()) {
      return Err(ErrorCode::kUnavailable, "loopback: closed");
    }
    return out_->Write(parts);
  }
  Result<size_t> Read(std::span<const iovec> parts) override {
    const std::optional<size_t> size_bytes = in_->Read(parts);
    if (!size_bytes) {
      return Err(ErrorCode::kUnavailable, "loopback: closed");
    }
    return *size_bytes;
  }
  size_t BacklogBytes() override { return out_->size_bytes(); }
  [[nodiscard]] int fd() const override { return -1; }
  void SetWake(std::function<void()> wake) override {
    in_->SetWake(true, wake);
    out_->SetWake(false, std::move(wake));
  }
  [[nodiscard]] std::string PeerName() const override { return "loopback"; }
  void Close() override {
    in_->Close();
    out_->Close();
  }

 private:
  const std::shared_ptr<Pipe> in_;
  const std::shared_ptr<Pipe> out_;
};

}  // namespace

std::pair<std::unique_ptr<ByteChannel>, std::unique_ptr<ByteChannel>> MakeLoopbackPair(
    size_t capacity_bytes) {
  auto there = std::make_shared<Pipe>(capacity_bytes);
  auto back = std::make_shared<Pipe>(capacity_bytes);
  return {std::make_unique<LoopbackChannel>(back, there),
          std::make_unique<LoopbackChannel>(there, back)};
}

void ConnectLoopback(Endpoint& from, Endpoint& to, int64_t deadline_us, Endpoint::Connected done) {
  auto [near, far] = MakeLoopbackPair();
  to.Adopt(std::move(far), /*connecting=*/false, kNever, nullptr);
  from.Adopt(std::move(near), /*connecting=*/true, deadline_us, std::move(done));
}

}  // namespace kvik::transfer
