// SPDX-License-Identifier: Apache-2.0
// What is written is cut into segments. A segment *departs* when the direction's rate has let its
// last byte through (LinkCapacity reserves one after the other, for all channels of the link), and
// is *delivered* a delay later, never before the segment in front of it. A lost packet costs what
// it costs above TCP: everything from it on arrives one retransmission timeout later.
//
// All times follow from when bytes were written, not from when somebody looked, so looking late
// costs no capacity.
#include "transfer/emulated_link.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/rng.h"

namespace kvik::transfer {
namespace {

constexpr size_t kLargestSegment = size_t{64} << 10;
// Small, because a frame is there when the segment with its last byte is.
constexpr double kSegmentMicros = 100;
constexpr double kQueueMicros = 20000;
constexpr size_t kSmallestQueue = size_t{64} << 10;
constexpr size_t kLargestQueue = size_t{4} << 20;
// Departed and not delivered; a delay must not become memory without a bound.
constexpr size_t kMaxUnderWay = size_t{256} << 20;

// When the integral of `rate` (a second) from `start_us` on reaches `amount`; infinity: never.
double ReachedAt(const LinkSchedule& rate, double start_us, double amount) {
  double at_us = start_us;
  while (amount > 0) {
    const auto whole_us = static_cast<int64_t>(std::floor(at_us));
    const double now_rate = rate.At(whole_us) * 1e-6;
    const int64_t change_us = rate.NextChange(whole_us);
    const double until_us = change_us == kNever ? std::numeric_limits<double>::infinity()
                                                : static_cast<double>(change_us);
    if (std::isinf(now_rate)) {
      return at_us;
    }
    const double possible = now_rate > 0 ? (until_us - at_us) * now_rate : 0;
    if (possible >= amount) {
      return at_us + amount / now_rate;
    }
    if (std::isinf(until_us)) {
      return until_us;
    }
    amount -= possible;
    at_us = until_us;
  }
  return at_us;
}

int64_t ToMicros(double time_us) {
  return time_us >= 9e18 ? kNever : static_cast<int64_t>(std::ceil(time_us));
}

}  // namespace

class LinkCapacity {
 public:
  explicit LinkCapacity(const LinkSpec& spec) : spec_(spec) {}

  // When the last of `size_bytes`, written at `now_us`, departs.
  int64_t Reserve(int64_t now_us, size_t size_bytes) {
    MutexLock lock(mutex_);
    const auto now = static_cast<double>(now_us);
    const double rate = spec_.rate_bytes_per_second.At(now_us) * 1e-6;
    const double pause_us =
        rate > 0 && std::isfinite(rate) ? static_cast<double>(spec_.burst_bytes) / rate : 0;
    const double start_us = std::max(free_us_, now - pause_us);
    free_us_ = ReachedAt(spec_.rate_bytes_per_second, start_us, static_cast<double>(size_bytes));
    return std::max(now_us, ToMicros(free_us_));
  }

 private:
  const LinkSpec& spec_;
  Mutex mutex_;
  // From when on the direction is idle.
  double free_us_ KVIK_GUARDED_BY(mutex_) = -std::numeric_limits<double>::infinity();
};

EmulatedLink::EmulatedLink(const LinkSpec& spec, const Clock& clock)
    : spec_(spec),
      clock_(clock),
      start_us_(clock.NowMicros()),
      out_(std::make_unique<LinkCapacity>(spec_)),
      in_(std::make_unique<LinkCapacity>(spec_)) {}

EmulatedLink::~EmulatedLink() = default;

namespace {

// One direction of one channel: bytes between being written and being delivered. Times count from
// the start of the link.
class Flow {
 public:
  Flow(const LinkSpec& spec, LinkCapacity& capacity, Rng rng)
      : spec_(spec), capacity_(capacity), rng_(rng) {}

  // Room for bytes that are written now.
  size_t Room(int64_t now_us) {
    Depart(now_us);
    const size_t limit = QueueLimit(now_us);
    const bool full = waiting_bytes_ >= limit || held_bytes_ >= kMaxUnderWay;
    refused_ = full;
    return full ? 0 : limit - waiting_bytes_;
  }

  // As much of `parts`, in order, as fits `size_bytes`; how many bytes.
  size_t Put(int64_t now_us, std::span<const iovec> parts, size_t size_bytes) {
    const double rate = spec_.rate_bytes_per_second.At(now_us);
    const size_t largest =
        std::isfinite(rate)
            ? std::clamp(static_cast<size_t>(rate * kSegmentMicros * 1e-6),
                         std::min(spec_.packet_bytes, kLargestSegment), kLargestSegment)
            : kLargestSegment;
    size_t total = 0;
    for (const iovec& part : parts) {
      total += part.iov_len;
    }
    total = std::min(total, size_bytes);
    // Segments do not care where parts end: a header travels with its payload.
    std::vector<std::byte> bytes;
    size_t left = total;
    for (const iovec& part : parts) {
      const auto* from = static_cast<const std::byte*>(part.iov_base);
      size_t rest = std::min(part.iov_len, left);
      while (rest > 0) {
        if (bytes.empty()) {
          bytes.reserve(std::min(left, largest));
        }
        const size_t size = std::min(rest, largest - bytes.size());
        bytes.insert(bytes.end(), from, from + size);
        from += size;
        rest -= size;
        left -= size;
        if (bytes.size() == largest || left == 0) {
          PutSegment(now_us, std::exchange(bytes, {}));
        }
      }
    }
    return total;
  }

  // What is to be handed over now, or empty.
  [[nodiscard]] std::span<const std::byte> Front(int64_t now_us) {
    looked_us_ = now_us;
    if (segments_.empty() || segments_.front().deliver_us > now_us) {
      return {};
    }
    const Segment& segment = segments_.front();
    return std::span(segment.bytes).subspan(segment.taken);
  }
  void Pop(size_t size_bytes) {
    Segment& segment = segments_.front();
    segment.taken += size_bytes;
    held_bytes_ -= size_bytes;
    if (segment.taken == segment.bytes.size()) {
      segments_.pop_front();
    }
  }
  // What is left, whatever its time.
  [[nodiscard]] bool empty() const { return segments_.empty(); }

  // Bytes that have not departed.
  [[nodiscard]] size_t Waiting(int64_t now_us) {
    Depart(now_us);
    return waiting_bytes_;
  }

  // When Front or Room give something that they did not give when they were asked last.
  [[nodiscard]] int64_t NextEventMicros() const {
    int64_t next_us = kNever;
    if (!segments_.empty() && segments_.front().deliver_us > looked_us_) {
      next_us = segments_.front().deliver_us;
    }
    if (refused_) {
      size_t left = waiting_bytes_;
      for (const Departure& waiting : waiting_) {
        left -= waiting.size_bytes;
        if (left <= waiting_bytes_ / 2) {
          next_us = std::min(next_us, waiting.depart_us);
          break;
        }
      }
    }
    return next_us;
  }

 private:
  struct Segment {
    std::vector<std::byte> bytes;
    size_t taken = 0;
    int64_t deliver_us = 0;
  };
  struct Departure {
    int64_t depart_us = 0;
    size_t size_bytes = 0;
  };

  [[nodiscard]] size_t QueueLimit(int64_t now_us) const {
    if (spec_.queue_bytes > 0) {
      return spec_.queue_bytes;
    }
    const double rate = spec_.rate_bytes_per_second.At(now_us);
    return std::isfinite(rate) ? std::clamp(static_cast<size_t>(rate * kQueueMicros * 1e-6),
                                            kSmallestQueue, kLargestQueue)
                               : kLargestQueue;
  }

  void Depart(int64_t now_us) {
    while (!waiting_.empty() && waiting_.front().depart_us <= now_us) {
      waiting_bytes_ -= waiting_.front().size_bytes;
      waiting_.pop_front();
    }
  }

  void PutSegment(int64_t now_us, std::vector<std::byte> bytes) {
    const int64_t depart_us = capacity_.Reserve(now_us, bytes.size());
    waiting_.push_back(Departure{depart_us, bytes.size()});
    waiting_bytes_ += bytes.size();
    held_bytes_ += bytes.size();
    int64_t deliver_us = kNever;
    if (depart_us != kNever) {
      const double jitter_us = spec_.jitter_us.At(depart_us) * rng_.Uniform();
      deliver_us = depart_us + static_cast<int64_t>(spec_.delay_us.At(depart_us) + jitter_us);
      const double loss = spec_.loss.At(depart_us);
      const size_t packets = (bytes.size() + spec_.packet_bytes - 1) / spec_.packet_bytes;
      if (rng_.Uniform() < 1 - std::pow(1 - loss, static_cast<double>(packets))) {
        deliver_us += spec_.rto_us;
      }
    }
    deliver_us = std::max(deliver_us, last_deliver_us_);
    last_deliver_us_ = deliver_us;
    segments_.push_back(Segment{std::move(bytes), 0, deliver_us});
  }

  const LinkSpec& spec_;
  LinkCapacity& capacity_;
  Rng rng_;
  std::deque<Segment> segments_;
  std::deque<Departure> waiting_;
  size_t waiting_bytes_ = 0;
  size_t held_bytes_ = 0;
  int64_t last_deliver_us_ = 0;
  int64_t looked_us_ = -1;
  bool refused_ = false;
};

}  // namespace

class EmulatedChannel final : public ByteChannel {
 public:
  EmulatedChannel(std::shared_ptr<EmulatedLink> link, std::unique_ptr<ByteChannel> inner,
                  EmulatedLink::Direction direction)
      : link_(std::move(link)),
        inner_(std::move(inner)),
        direction_(direction),
        number_(link_->channels_.fetch_add(1)),
        out_(link_->spec_, *link_->out_, Rng(link_->spec_.seed, 3 * number_)),
        in_(link_->spec_, *link_->in_, Rng(link_->spec_.seed, 3 * number_ + 1)) {
    Rng rng(link_->spec_.seed, 3 * number_ + 2);
    reset_us_ = ToMicros(
        ReachedAt(link_->spec_.resets, static_cast<double>(Now()), -std::log(1 - rng.Uniform())));
  }

  Result<size_t> Write(std::span<const iovec> parts) override {
    KVIK_TRY(CheckReset());
    if (direction_ == EmulatedLink::Direction::kIn) {
      return inner_->Write(parts);
    }
    KVIK_TRY(Deliver());
    const int64_t now_us = Now();
    const size_t written = out_.Put(now_us, parts, out_.Room(now_us));
    KVIK_TRY(Deliver());
    return written;
  }

  Result<size_t> Read(std::span<const iovec> parts) override {
    KVIK_TRY(CheckReset());
    if (direction_ != EmulatedLink::Direction::kIn) {
      KVIK_TRY(Deliver());
    }
    if (direction_ == EmulatedLink::Direction::kOut) {
      return inner_->Read(parts);
    }
    FetchFromInner();
    const int64_t now_us = Now();
    size_t read = 0;
    for (const iovec& part : parts) {
      size_t filled = 0;
      while (filled < part.iov_len) {
        const std::span<const std::byte> front = in_.Front(now_us);
        if (front.empty()) {
          break;
        }
        const size_t size = std::min(front.size(), part.iov_len - filled);
        std::memcpy(static_cast<std::byte*>(part.iov_base) + filled, front.data(), size);
        in_.Pop(size);
        filled += size;
      }
      read += filled;
    }
    if (read == 0 && in_.empty() && inner_error_) {
      return *inner_error_;
    }
    return read;
  }

  size_t BacklogBytes() override {
    return direction_ == EmulatedLink::Direction::kIn
               ? inner_->BacklogBytes()
               : out_.Waiting(Now()) + inner_->BacklogBytes();
  }

  int64_t NextEventMicros() override {
    const int64_t next_us =
        std::min({out_.NextEventMicros(), in_.NextEventMicros(), was_reset_ ? kNever : reset_us_});
    const int64_t inner_us = inner_->NextEventMicros();
    return std::min(inner_us, next_us == kNever ? kNever : link_->start_us_ + next_us);
  }

  [[nodiscard]] int fd() const override { return inner_->fd(); }
  void SetWake(std::function<void()> wake) override { inner_->SetWake(std::move(wake)); }
  [[nodiscard]] std::string PeerName() const override { return inner_->PeerName(); }

  void Close() override {
    // What was written is on its way, and nobody will look after it: hand it over early.
    while (!was_reset_ && !out_.empty()) {
      const std::span<const std::byte> front = out_.Front(kNever);
      const iovec part{const_cast<std::byte*>(front.data()), front.size()};
      const Result<size_t> size = inner_->Write(std::span(&part, 1));
      if (!size || *size == 0) {
        break;
      }
      out_.Pop(*size);
    }
    inner_->Close();
  }

 private:
  [[nodiscard]] int64_t Now() const { return link_->clock_.NowMicros() - link_->start_us_; }

  Result<void> CheckReset() {
    if (was_reset_ || Now() >= reset_us_) {
      was_reset_ = true;
      inner_->Close();
      return Err(ErrorCode::kUnavailable, "%s: the emulated link reset the connection",
                 inner_->PeerName().c_str());
    }
    return {};
  }

  // Hands over what is due.
  Result<void> Deliver() {
    const int64_t now_us = Now();
    for (;;) {
      const std::span<const std::byte> front = out_.Front(now_us);
      if (front.empty()) {
        return {};
      }
      const iovec part{const_cast<std::byte*>(front.data()), front.size()};
      KVIK_ASSIGN(const size_t size, inner_->Write(std::span(&part, 1)));
      if (size == 0) {
        return {};  // it will wake us when there is room
      }
      out_.Pop(size);
    }
  }

  void FetchFromInner() {
    const int64_t now_us = Now();
    while (!inner_error_) {
      const size_t room = std::min(in_.Room(now_us), fetched_.size());
      if (room == 0) {
        return;
      }
      const iovec part{fetched_.data(), room};
      const Result<size_t> size = inner_->Read(std::span(&part, 1));
      if (!size) {
        inner_error_ = size.error();
      } else if (*size == 0) {
        return;
      } else {
        in_.Put(now_us, std::span(&part, 1), *size);
      }
    }
  }

  const std::shared_ptr<EmulatedLink> link_;
  const std::unique_ptr<ByteChannel> inner_;
  const EmulatedLink::Direction direction_;
  const uint64_t number_;
  Flow out_;
  Flow in_;
  std::vector<std::byte> fetched_ = std::vector<std::byte>(kLargestSegment);
  std::optional<Error> inner_error_;
  int64_t reset_us_ = kNever;
  bool was_reset_ = false;
};

std::unique_ptr<ByteChannel> EmulatedLink::Wrap(std::shared_ptr<EmulatedLink> link,
                                                std::unique_ptr<ByteChannel> inner,
                                                Direction direction) {
  return std::make_unique<EmulatedChannel>(std::move(link), std::move(inner), direction);
}

}  // namespace kvik::transfer
