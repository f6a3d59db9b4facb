// SPDX-License-Identifier: Apache-2.0
// transfer/session.h: the protocol of one connection as a state machine: bytes in, bytes out,
// events up. Without sockets, threads or waiting, so that tests and fuzzers drive it byte by byte.
// Thread-compatible: one thread owns a session.
#pragma once

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "transfer/buffer.h"
#include "transfer/endpoint.h"
#include "transfer/hello.h"
#include "transfer/receive_pool.h"
#include "transfer/stream.h"
#include "transfer/wire.h"

namespace kvik::transfer {

// What of one stream waits to be sent: shared with the thread that sends. Thread-safe.
class SendBudget {
 public:
  explicit SendBudget(size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // Books `cost` unless the limit is reached already: a message of any size is taken whole.
  bool TryTake(size_t cost) {
    for (;;) {
      size_t queued = queued_.load();
      while (queued < limit_bytes_) {
        if (queued_.compare_exchange_weak(queued, queued + cost)) {
          return true;
        }
      }
      wanted_.store(true);
      if (queued_.load() >= limit_bytes_) {
        return false;  // whoever gives back from now on sees `wanted_`
      }
      wanted_.store(false);
    }
  }
  void Take(size_t cost) { queued_.fetch_add(cost); }
  // Whether a refused sender is to be told that there is room.
  bool Give(size_t cost) {
    const size_t queued = queued_.fetch_sub(cost) - cost;
    return queued <= limit_bytes_ / 2 && wanted_.load() && wanted_.exchange(false);
  }
  [[nodiscard]] size_t queued() const { return queued_.load(); }

 private:
  const size_t limit_bytes_;
  std::atomic<size_t> queued_{0};
  std::atomic<bool> wanted_{false};
};

// What a message costs of windows and buffers: small ones are not free.
[[nodiscard]] inline size_t MessageCost(size_t payload_bytes) {
  return payload_bytes + kFrameHeaderBytes;
}

// Called from within Session's methods, and must not call back into it.
class SessionEvents {
 public:
  virtual ~SessionEvents() = default;
  virtual void OnHello(const Hello& peer) = 0;
  // The peer opened a stream; the budget of what will be sent on it.
  virtual std::shared_ptr<SendBudget> OnOpened(uint32_t stream, uint16_t method,
                                               int64_t deadline_us, bool request_only,
                                               SharedBytes request) = 0;
  virtual void OnMessage(uint32_t stream, Message message) = 0;
  virtual void OnWritable(uint32_t stream) = 0;
  // The stream is over and its number means nothing any more.
  virtual void OnEnded(uint32_t stream, const Result<void>& outcome, const StreamStats& stats) = 0;
};

class Session {
 public:
  struct Options {
    Hello hello;
    HandshakePolicy policy;
    ConnectionLimits limits;
  };
  // `credit_returned` is called by any thread when a stream's CreditReturned is due. The others
  // must outlive the session. REQUIRES: CheckLimits and EncodeHello accept the options.
  Session(const Options& options, bool connecting, const Clock& clock,
          std::shared_ptr<ReceivePool> pool, std::function<void(uint32_t)> credit_returned,
          SessionEvents& events);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // kInvalidInput: limits with which no stream could make progress.
  [[nodiscard]] static Result<void> CheckLimits(const ConnectionLimits& limits);

  // --- Input. Where the next bytes are to be put: fill the parts in order, then say how many.
  // After an error the session is over: Fail was called.
  [[nodiscard]] std::span<const iovec> ReadParts();
  Result<void> Received(size_t size_bytes);

  // --- Output. What is to be written, in order; empty: nothing now. `backlogged`: bytes of before
  // have not left yet.
  [[nodiscard]] std::span<const iovec> WriteParts(bool backlogged);
  void Written(size_t size_bytes);

  // --- Time. Ends what has passed its deadline; fails the session when the peer is silent.
  Result<void> Tick();
  [[nodiscard]] int64_t NextTickMicros() const;

  // --- Streams. Numbers of streams that are over are ignored everywhere.
  // After OnHello. An error ends the new stream through OnEnded, within the call.
  uint32_t Open(const OpenOptions& options, SharedBytes request,
                std::shared_ptr<SendBudget> budget);
  // REQUIRES: `message` is booked in the budget.
  void Send(uint32_t stream, Message message);
  void Finish(uint32_t stream);
  void Cancel(uint32_t stream, const Error& error);
  void CreditReturned(uint32_t stream);
  void Drain(const std::string& reason);

  // Ends everything with `error`, which the peer is told if there is a way to.
  void Fail(const Error& error);

  [[nodiscard]] bool ready() const { return peer_.has_value() && !failed_; }
  [[nodiscard]] bool failed() const { return failed_; }
  // Failed, and the peer was told or does not listen: the channel can be closed.
  [[nodiscard]] bool over() const;
  [[nodiscard]] const ConnectionStats& stats() const { return stats_; }

 private:
  struct OutFrame {
    HeaderBytes header;
    SharedBytes payload;
  };
  struct Queued {
    Message message;
    size_t offset = 0;  // sent of it
  };
  struct StreamState {
    bool mine = false;       // opened by this side
    bool announced = false;  // kOpen went out or came in
    uint8_t priority = 128;
    bool sent_last = false;  // this side's direction is over,
    bool want_last = false;  // or will be when the queue is empty
    bool received_last = false;
    bool listed = false;  // in ready_
    int64_t deadline_us = kNever;
    int64_t send_credit = 0;
    int64_t receive_credit = 0;  // what the peer may still send
    std::deque<Queued> queue;
    std::shared_ptr<SendBudget> budget;
    std::shared_ptr<ReceiveWindow> window;
    StreamStats stats;
    uint64_t wire_bytes_before = 0;
    int64_t wire_us_before = 0;
    uint16_t method = 0;  // until announced
    SharedBytes request;
    bool request_only = false;
  };
  struct PeerLimits {
    uint32_t max_frame_bytes = 0;
    uint32_t window_bytes = 0;
    uint32_t max_streams = 0;
  };

  StreamState* Find(uint32_t stream);
  StreamState& Add(uint32_t stream);
  void End(uint32_t stream, const Result<void>& outcome);
  void EndIfDone(uint32_t stream, StreamState& state);
  [[nodiscard]] bool Sendable(const StreamState& state) const;
  void List(uint32_t stream, StreamState& state);
  void AnnounceWaiting();
  void PushControl(FrameType type, uint32_t stream, std::vector<std::byte> payload,
                   uint8_t flags = 0);
  void PushFrame(FrameHeader header, SharedBytes payload);
  bool PushNextMessage(bool backlogged);
  void PushHello();

  Result<void> Parse();
  Result<void> Step(size_t size_bytes);
  Result<void> BeginFrame(const FrameHeader& header);
  Result<void> FinishFrame();
  Result<void> CheckControl(const FrameHeader& header) const;
  Result<void> OnHelloFrame(std::span<const std::byte> payload);
  Result<void> OnOpenFrame(const FrameHeader& header, const SharedBytes& payload);
  Result<void> OnDataFrame(const FrameHeader& header, SharedBytes payload);
  Result<void> OnCreditFrame(const FrameHeader& header, std::span<const std::byte> payload);
  Result<void> OnCancelFrame(const FrameHeader& header, std::span<const std::byte> payload);
  Result<void> CheckStreamNumber(uint32_t stream) const;

  const Options options_;
  const bool connecting_;
  const Clock& clock_;
  const std::shared_ptr<ReceivePool> pool_;
  const std::function<void(uint32_t)> credit_returned_;
  SessionEvents& events_;

  bool failed_ = false;
  Error failure_;
  int64_t failed_us_ = 0;
  bool flooded_ = false;
  std::optional<Hello> peer_;
  PeerLimits peer_limits_;
  std::optional<std::string> peer_drains_;
  bool draining_ = false;
  const int64_t started_us_;
  int64_t last_heard_us_;
  int64_t last_ping_us_;
  std::array<int64_t, 8> rtts_us_{};
  size_t rtt_count_ = 0;

  std::map<uint32_t, StreamState> streams_;
  uint32_t next_stream_;  // of this side's
  uint32_t highest_peer_stream_ = 0;
  size_t my_streams_ = 0;  // announced
  size_t peer_streams_ = 0;
  std::deque<uint32_t> waiting_;                   // for a place among the peer's max_streams
  std::map<uint8_t, std::deque<uint32_t>> ready_;  // priority: streams with something to send

  // Output: frames in the order of their sequence numbers, the first partly written.
  std::deque<OutFrame> queue_;
  size_t queue_bytes_ = 0;
  size_t written_of_first_ = 0;
  uint32_t next_sequence_ = 0;
  std::vector<iovec> write_parts_;

  // Input: a small buffer for headers and what follows them, or the payload of one frame.
  std::vector<std::byte> head_;
  size_t head_bytes_ = 0;
  std::optional<FrameHeader> current_;
  ReceivePool::Buffer payload_;
  size_t payload_got_ = 0;
  uint32_t expected_sequence_ = 0;
  std::array<iovec, 2> read_parts_{};
  int64_t last_frame_us_ = 0;

  ConnectionStats stats_;
};

}  // namespace kvik::transfer
