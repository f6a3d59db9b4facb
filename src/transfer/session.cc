// SPDX-License-Identifier: Apache-2.0
// Order on the wire. Everything to be sent becomes a frame in `queue_` and gets its sequence number
// there, so the queue is the order. Control frames enter it at once; messages only while fewer than
// kAheadBytes are in it, so that a small message of an urgent stream never stands behind more than
// that of bulk data.
//
// Windows. A sender may have as many bytes of a stream under way as the receiver has said to have
// room for; a receiver gives credit back when the application drops a message, a quarter window at
// a time. A window holds at least two of the largest frames (CheckLimits), so what is not given
// back yet can never keep the next frame waiting.
//
// Streams that are over. Frames of the peer that were under way when this side ended a stream are
// recognised by a number that was in use once, and ignored.
#include "transfer/session.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/crc32c.h"
#include "transfer/payload.h"

namespace kvik::transfer {
namespace {

constexpr size_t kHeadBytes = size_t{4} << 10;
constexpr size_t kAheadBytes = size_t{256} << 10;
constexpr size_t kMaxPieceBytes = size_t{128} << 10;
// Control frames that a peer made us queue and does not read.
constexpr size_t kMaxQueueBytes = size_t{2} << 20;
constexpr size_t kMaxControlBytes = 2048;
constexpr size_t kMaxHelloBytes = 1024 + kMaxHelloProfiles * 16 + kMaxHelloExtra;
constexpr size_t kMaxParts = 64;
constexpr int64_t kLingerMicros = 1'000'000;
constexpr size_t kMaxStreams = 1 << 16;
constexpr size_t kMaxFrameBytes = size_t{64} << 20;
constexpr size_t kMaxWindowBytes = size_t{1} << 30;
// Frames with a request: method, priority and microseconds left.
constexpr size_t kOpenFixedBytes = 2 + 1 + 8;

}  // namespace

Result<void> Session::CheckLimits(const ConnectionLimits& limits) {
  if (limits.max_frame_bytes < 4096 || limits.max_frame_bytes > kMaxFrameBytes) {
    return Err(ErrorCode::kInvalidInput, "frames of %zu bytes: 4 KiB to 64 MiB are possible",
               limits.max_frame_bytes);
  }
  if (limits.window_bytes < 2 * MessageCost(limits.max_frame_bytes) ||
      limits.window_bytes > kMaxWindowBytes) {
    return Err(ErrorCode::kInvalidInput,
               "a window of %zu bytes: two frames of %zu with their headers must fit, and 1 GiB is "
               "the most",
               limits.window_bytes, limits.max_frame_bytes);
  }
  if (limits.max_streams == 0 || limits.max_streams > kMaxStreams ||
      limits.send_buffer_bytes == 0) {
    return Err(ErrorCode::kInvalidInput, "1 to %zu streams and a send buffer are needed",
               kMaxStreams);
  }
  if (limits.heartbeat_us <= 0 || limits.peer_timeout_us <= limits.heartbeat_us ||
      limits.handshake_timeout_us <= 0) {
    return Err(ErrorCode::kInvalidInput,
               "times of a connection must be positive, and a peer's silence longer than the "
               "heartbeat");
  }
  return {};
}

Session::Session(const Options& options, bool connecting, const Clock& clock,
                 std::shared_ptr<ReceivePool> pool, std::function<void(uint32_t)> credit_returned,
                 SessionEvents& events)
    : options_(options),
      connecting_(connecting),
      clock_(clock),
      pool_(std::move(pool)),
      credit_returned_(std::move(credit_returned)),
      events_(events),
      started_us_(clock.NowMicros()),
      last_heard_us_(started_us_),
      last_ping_us_(started_us_),
      next_stream_(connecting ? 1 : 2),
      head_(kHeadBytes) {
  if (connecting_) {
    PushHello();
  }
}

// ---------------------------------------------------------------- output

void Session::PushHello() {
  std::vector<std::byte> payload;
  PayloadWriter writer(payload);
  writer.Put(static_cast<uint32_t>(options_.limits.max_frame_bytes));
  writer.Put(static_cast<uint32_t>(options_.limits.window_bytes));
  writer.Put(static_cast<uint32_t>(options_.limits.max_streams));
  const Result<void> encoded = EncodeHello(options_.hello, payload);
  KVIK_CHECK(encoded.has_value(), "%s", encoded.error().message.c_str());
  PushControl(FrameType::kHello, 0, std::move(payload));
}

void Session::PushControl(FrameType type, uint32_t stream, std::vector<std::byte> payload,
                          uint8_t flags) {
  FrameHeader header;
  header.type = type;
  header.stream = stream;
  header.flags = flags;
  PushFrame(header, SharedBytes::Own(std::move(payload)));
  flooded_ = flooded_ || queue_bytes_ > kMaxQueueBytes + options_.limits.max_frame_bytes;
}

void Session::PushFrame(FrameHeader header, SharedBytes payload) {
  header.sequence = next_sequence_++;
  header.payload_bytes = static_cast<uint32_t>(payload.size_bytes());
  header.payload_crc = Crc32c(payload.span());
  queue_bytes_ += kFrameHeaderBytes + payload.size_bytes();
  queue_.push_back(OutFrame{EncodeHeader(header), std::move(payload)});
}

bool Session::Sendable(const StreamState& state) const {
  if (!state.announced || state.sent_last || state.budget == nullptr) {
    return false;
  }
  if (state.queue.empty()) {
    return state.want_last && state.send_credit >= static_cast<int64_t>(MessageCost(0));
  }
  const Queued& front = state.queue.front();
  const size_t piece = std::min({front.message.bytes.size_bytes() - front.offset,
                                 size_t{peer_limits_.max_frame_bytes}, kMaxPieceBytes});
  return state.send_credit >= static_cast<int64_t>(MessageCost(piece));
}

void Session::List(uint32_t stream, StreamState& state) {
  if (!state.listed && Sendable(state)) {
    state.listed = true;
    ready_[state.priority].push_back(stream);
  }
}

// Makes one frame of the most urgent stream that may send; false if there is none.
bool Session::PushNextMessage(bool backlogged) {
  while (!ready_.empty()) {
    const auto level = ready_.begin();
    if (level->second.empty()) {
      ready_.erase(level);
      continue;
    }
    const uint32_t stream = level->second.front();
    level->second.pop_front();
    StreamState* const state = Find(stream);
    if (state == nullptr) {
      continue;
    }
    state->listed = false;
    if (!Sendable(*state)) {
      continue;
    }
    FrameHeader header;
    header.type = FrameType::kData;
    header.stream = stream;
    header.flags = backlogged || !queue_.empty() ? kFlagBackToBack : uint8_t{0};
    SharedBytes payload;
    size_t given_back = 0;
    if (!state->queue.empty()) {
      Queued& front = state->queue.front();
      const size_t rest = front.message.bytes.size_bytes() - front.offset;
      const size_t piece = std::min({rest, size_t{peer_limits_.max_frame_bytes}, kMaxPieceBytes});
      header.kind = front.message.kind;
      header.tag = front.message.tag;
      payload = front.message.bytes.Slice(front.offset, piece);
      front.offset += piece;
      given_back = piece;
      if (piece == rest) {
        given_back += kFrameHeaderBytes;
        state->queue.pop_front();
      } else {
        header.flags |= kFlagMore;
      }
    }
    if (state->queue.empty() && state->want_last) {
      header.flags |= kFlagLast;
      state->sent_last = true;
    }
    state->send_credit -= static_cast<int64_t>(MessageCost(payload.size_bytes()));
    state->stats.sent_bytes += payload.size_bytes();
    PushFrame(header, std::move(payload));
    List(stream, *state);
    const bool has_room = given_back > 0 && state->budget->Give(given_back) && !state->want_last;
    if (has_room) {
      events_.OnWritable(stream);
    }
    EndIfDone(stream, *state);
    return true;
  }
  return false;
}

std::span<const iovec> Session::WriteParts(bool backlogged) {
  if (peer_.has_value() && !failed_) {
    while (queue_bytes_ < kAheadBytes && PushNextMessage(backlogged)) {
    }
  }
  write_parts_.clear();
  size_t skip = written_of_first_;
  for (const OutFrame& frame : queue_) {
    if (write_parts_.size() + 2 > kMaxParts) {
      break;
    }
    for (const std::span<const std::byte> bytes :
         {std::span<const std::byte>(frame.header), frame.payload.span()}) {
      const size_t skipped = std::min(skip, bytes.size());
      skip -= skipped;
      if (skipped < bytes.size()) {
        write_parts_.push_back(
            iovec{const_cast<std::byte*>(bytes.data() + skipped), bytes.size() - skipped});
      }
    }
  }
  return write_parts_;
}

void Session::Written(size_t size_bytes) {
  KVIK_CHECK(size_bytes <= queue_bytes_);
  stats_.sent_bytes += size_bytes;
  queue_bytes_ -= size_bytes;
  written_of_first_ += size_bytes;
  while (!queue_.empty()) {
    const size_t first_bytes = kFrameHeaderBytes + queue_.front().payload.size_bytes();
    if (written_of_first_ < first_bytes) {
      break;
    }
    written_of_first_ -= first_bytes;
    queue_.pop_front();
  }
}

// ---------------------------------------------------------------- streams

Session::StreamState* Session::Find(uint32_t stream) {
  const auto it = streams_.find(stream);
  return it == streams_.end() ? nullptr : &it->second;
}

Session::StreamState& Session::Add(uint32_t stream) {
  StreamState& state = streams_[stream];
  state.send_credit = peer_limits_.window_bytes;
  state.receive_credit = static_cast<int64_t>(options_.limits.window_bytes);
  state.window = std::make_shared<ReceiveWindow>(
      options_.limits.window_bytes / 4, [notify = credit_returned_, stream] { notify(stream); });
  state.stats.opened_us = clock_.NowMicros();
  state.wire_bytes_before = stats_.wire_bytes;
  state.wire_us_before = stats_.wire_us;
  ++stats_.streams_total;
  stats_.open_streams = streams_.size();
  return state;
}

uint32_t Session::Open(const OpenOptions& options, SharedBytes request,
                       std::shared_ptr<SendBudget> budget) {
  const uint32_t stream = next_stream_;
  next_stream_ += 2;
  StreamState& state = Add(stream);
  state.mine = true;
  state.priority = options.priority;
  state.deadline_us = options.deadline_us;
  state.budget = std::move(budget);
  state.method = options.method;
  state.request = std::move(request);
  state.request_only = options.request_only;
  state.want_last = options.request_only;
  state.sent_last = options.request_only;
  if (failed_) {
    End(stream, failure_);
  } else if (peer_drains_) {
    End(stream,
        Err(ErrorCode::kUnavailable, "the peer takes no more work: %s", peer_drains_->c_str()));
  } else if (state.request.size_bytes() + kOpenFixedBytes > peer_limits_.max_frame_bytes) {
    End(stream, Err(ErrorCode::kInvalidInput, "a request of %zu bytes; the peer takes %u",
                    state.request.size_bytes(), peer_limits_.max_frame_bytes));
  } else if (next_stream_ >= UINT32_MAX - 2) {
    End(stream, Err(ErrorCode::kUnavailable, "the connection is used up: connect again"));
  } else {
    waiting_.push_back(stream);
    AnnounceWaiting();
  }
  return stream;
}

// Opens what waits while the peer has places.
void Session::AnnounceWaiting() {
  while (!waiting_.empty() && my_streams_ < peer_limits_.max_streams) {
    const uint32_t stream = waiting_.front();
    waiting_.pop_front();
    StreamState* const state = Find(stream);
    if (state == nullptr) {
      continue;  // cancelled meanwhile
    }
    std::vector<std::byte> payload;
    PayloadWriter writer(payload);
    writer.Put(state->method);
    writer.Put(state->priority);
    const int64_t left_us = state->deadline_us == kNever
                                ? 0
                                : std::max<int64_t>(state->deadline_us - clock_.NowMicros(), 1);
    writer.Put(static_cast<uint64_t>(left_us));
    writer.PutBytes(state->request.span());
    state->request = {};
    state->announced = true;
    ++my_streams_;
    PushControl(FrameType::kOpen, stream, std::move(payload),
                state->request_only ? kFlagLast : uint8_t{0});
    List(stream, *state);
  }
}

void Session::Send(uint32_t stream, Message message) {
  StreamState* const state = Find(stream);
  if (state == nullptr || state->want_last) {
    return;
  }
  state->want_last = message.last;
  state->queue.push_back(Queued{std::move(message), 0});
  List(stream, *state);
}

void Session::Finish(uint32_t stream) {
  StreamState* const state = Find(stream);
  if (state != nullptr && !state->want_last) {
    state->want_last = true;
    List(stream, *state);
  }
}

void Session::Cancel(uint32_t stream, const Error& error) {
  StreamState* const state = Find(stream);
  if (state == nullptr) {
    return;
  }
  if (state->announced) {
    PushControl(FrameType::kCancel, stream, EncodeReason(error));
  }
  End(stream, error);
}

void Session::CreditReturned(uint32_t stream) {
  StreamState* const state = Find(stream);
  if (state == nullptr) {
    return;
  }
  const size_t bytes = state->window->Take();
  state->receive_credit += static_cast<int64_t>(bytes);
  if (bytes > 0 && !state->received_last) {
    std::vector<std::byte> payload;
    PayloadWriter(payload).Put(static_cast<uint32_t>(bytes));
    PushControl(FrameType::kCredit, stream, std::move(payload));
  }
}

void Session::EndIfDone(uint32_t stream, StreamState& state) {
  if (state.sent_last && state.received_last) {
    End(stream, Result<void>());
  }
}

void Session::End(uint32_t stream, const Result<void>& outcome) {
  const auto node = streams_.extract(stream);
  StreamState& state = node.mapped();
  state.stats.wire_bytes = stats_.wire_bytes - state.wire_bytes_before;
  state.stats.wire_us = stats_.wire_us - state.wire_us_before;
  if (state.announced) {
    --(state.mine ? my_streams_ : peer_streams_);
  }
  stats_.open_streams = streams_.size();
  stats_.streams_failed += outcome ? 0 : 1;
  events_.OnEnded(stream, outcome, state.stats);
  if (state.mine && !failed_) {
    AnnounceWaiting();
  }
}

void Session::Drain(const std::string& reason) {
  if (!draining_ && !failed_) {
    draining_ = true;
    PushControl(FrameType::kDrain, 0, EncodeReason(Error{ErrorCode::kUnavailable, reason}));
  }
}

void Session::Fail(const Error& error) {
  if (failed_) {
    return;
  }
  failed_ = true;
  failure_ = error;
  failed_us_ = clock_.NowMicros();
  // What is partly written has to be finished, or the reason would be taken for its payload.
  while (queue_.size() > (written_of_first_ > 0 ? 1 : 0)) {
    queue_bytes_ -= kFrameHeaderBytes + queue_.back().payload.size_bytes();
    queue_.pop_back();
    --next_sequence_;
  }
  PushControl(FrameType::kClose, 0, EncodeReason(error));
  while (!streams_.empty()) {
    End(streams_.begin()->first, error);
  }
  waiting_.clear();
  ready_.clear();
  current_.reset();
  payload_ = {};
  payload_got_ = 0;
}

bool Session::over() const {
  return failed_ && (queue_.empty() || clock_.NowMicros() >= failed_us_ + kLingerMicros);
}

// ---------------------------------------------------------------- time

Result<void> Session::Tick() {
  if (failed_) {
    return failure_;
  }
  const int64_t now_us = clock_.NowMicros();
  if (!peer_ && now_us - started_us_ >= options_.limits.handshake_timeout_us) {
    Fail(Err(ErrorCode::kTimeout, "no handshake within %lld ms",
             static_cast<long long>(options_.limits.handshake_timeout_us / 1000)));
  } else if (now_us - last_heard_us_ >= options_.limits.peer_timeout_us) {
    Fail(Err(ErrorCode::kTimeout, "the peer has been silent for %lld ms",
             static_cast<long long>((now_us - last_heard_us_) / 1000)));
  } else if (flooded_) {
    Fail(Err(ErrorCode::kExhausted, "the peer makes us answer and does not read"));
  }
  if (failed_) {
    return failure_;
  }
  if (peer_ && now_us - last_ping_us_ >= options_.limits.heartbeat_us) {
    last_ping_us_ = now_us;
    std::vector<std::byte> payload;
    PayloadWriter(payload).Put(static_cast<uint64_t>(now_us));
    PushControl(FrameType::kPing, 0, std::move(payload));
  }
  std::vector<uint32_t> late;
  for (const auto& [stream, state] : streams_) {
    if (state.deadline_us <= now_us) {
      late.push_back(stream);
    }
  }
  for (const uint32_t stream : late) {
    Cancel(stream, Err(ErrorCode::kTimeout, "the deadline passed"));
  }
  return {};
}

int64_t Session::NextTickMicros() const {
  if (failed_) {
    return queue_.empty() ? kNever : failed_us_ + kLingerMicros;
  }
  int64_t next_us = last_heard_us_ + options_.limits.peer_timeout_us;
  if (peer_) {
    next_us = std::min(next_us, last_ping_us_ + options_.limits.heartbeat_us);
  } else {
    next_us = std::min(next_us, started_us_ + options_.limits.handshake_timeout_us);
  }
  for (const auto& [stream, state] : streams_) {
    next_us = std::min(next_us, state.deadline_us);
  }
  return next_us;
}

// ---------------------------------------------------------------- input

std::span<const iovec> Session::ReadParts() {
  size_t parts = 0;
  if (current_) {
    const auto rest = payload_.bytes.subspan(payload_got_);
    read_parts_[parts++] = iovec{rest.data(), rest.size()};
  }
  read_parts_[parts++] = iovec{head_.data() + head_bytes_, head_.size() - head_bytes_};
  return std::span(read_parts_).first(parts);
}

Result<void> Session::Received(size_t size_bytes) {
  if (failed_) {
    return failure_;
  }
  if (size_bytes > 0) {
    last_heard_us_ = clock_.NowMicros();
    stats_.received_bytes += size_bytes;
  }
  Result<void> stepped = Step(size_bytes);
  if (!stepped) {
    Fail(stepped.error());
  }
  return stepped;
}

Result<void> Session::Step(size_t size_bytes) {
  if (current_) {
    const size_t taken = std::min(size_bytes, payload_.bytes.size() - payload_got_);
    payload_got_ += taken;
    size_bytes -= taken;
    if (payload_got_ == payload_.bytes.size()) {
      KVIK_TRY(FinishFrame());
    }
  }
  head_bytes_ += size_bytes;
  return Parse();
}

// Takes whole headers and what there is of their payloads out of the head.
Result<void> Session::Parse() {
  size_t at = 0;
  for (;;) {
    if (!current_) {
      if (head_bytes_ - at < kFrameHeaderBytes) {
        break;
      }
      const std::span<const std::byte, kFrameHeaderBytes> bytes(head_.data() + at,
                                                                kFrameHeaderBytes);
      at += kFrameHeaderBytes;
      KVIK_ASSIGN(const FrameHeader header, DecodeHeader(bytes));
      KVIK_TRY(BeginFrame(header));
    }
    const size_t taken = std::min(head_bytes_ - at, payload_.bytes.size() - payload_got_);
    if (taken > 0) {
      std::memcpy(payload_.bytes.data() + payload_got_, head_.data() + at, taken);
      payload_got_ += taken;
      at += taken;
    }
    if (payload_got_ < payload_.bytes.size()) {
      break;
    }
    KVIK_TRY(FinishFrame());
  }
  std::memmove(head_.data(), head_.data() + at, head_bytes_ - at);
  head_bytes_ -= at;
  return {};
}

// Whether a stream of this number exists or existed.
Result<void> Session::CheckStreamNumber(uint32_t stream) const {
  const bool mine = (stream % 2 == 1) == connecting_;
  if (stream == 0 || (mine ? stream >= next_stream_ : stream > highest_peer_stream_)) {
    return Err(ErrorCode::kCorrupt, "a frame of stream %u, which was never opened", stream);
  }
  return {};
}

Result<void> Session::CheckControl(const FrameHeader& header) const {
  const size_t limit = header.type == FrameType::kHello ? kMaxHelloBytes : kMaxControlBytes;
  if (header.payload_bytes > limit) {
    return Err(ErrorCode::kCorrupt, "a control frame of %u bytes", header.payload_bytes);
  }
  if (header.flags != 0) {
    return Err(ErrorCode::kCorrupt, "flags on a control frame");
  }
  return {};
}

// Judges a header before anything is allocated for its payload.
Result<void> Session::BeginFrame(const FrameHeader& header) {
  if (header.sequence != expected_sequence_) {
    return Err(ErrorCode::kCorrupt, "frame %u where frame %u should be", header.sequence,
               expected_sequence_);
  }
  ++expected_sequence_;
  if (header.type == FrameType::kOpen || header.type == FrameType::kData) {
    if (header.payload_bytes > options_.limits.max_frame_bytes) {
      return Err(ErrorCode::kCorrupt, "a frame of %u bytes; %zu are the most", header.payload_bytes,
                 options_.limits.max_frame_bytes);
    }
  } else {
    KVIK_TRY(CheckControl(header));
  }
  const bool greeting = header.type == FrameType::kHello || header.type == FrameType::kClose;
  if (peer_.has_value() ? header.type == FrameType::kHello : !greeting) {
    return Err(ErrorCode::kCorrupt, peer_ ? "a second hello" : "a frame before the hello");
  }
  size_t cost = 0;
  std::shared_ptr<ReceiveWindow> window;
  if (header.type == FrameType::kData) {
    KVIK_TRY(CheckStreamNumber(header.stream));
    StreamState* const state = Find(header.stream);
    if (state != nullptr) {
      cost = MessageCost(header.payload_bytes);
      if (state->received_last || !state->announced ||
          (header.flags & (kFlagLast | kFlagMore)) == (kFlagLast | kFlagMore)) {
        return Err(ErrorCode::kCorrupt, "a message on stream %u, where none may come",
                   header.stream);
      }
      if (static_cast<int64_t>(cost) > state->receive_credit) {
        return Err(ErrorCode::kCorrupt, "more on stream %u than its window allows", header.stream);
      }
      state->receive_credit -= static_cast<int64_t>(cost);
      window = state->window;
    }
  }
  current_ = header;
  payload_got_ = 0;
  payload_ = {};
  if (header.payload_bytes > 0) {
    payload_ = pool_->Allocate(header.payload_bytes, cost, std::move(window));
  } else if (window != nullptr) {
    window->Return(cost);  // nothing that somebody could keep
  }
  return {};
}

Result<void> Session::FinishFrame() {
  const FrameHeader header = *current_;
  ReceivePool::Buffer buffer = std::move(payload_);
  current_.reset();
  payload_ = {};
  payload_got_ = 0;
  const std::span<const std::byte> payload = buffer.bytes;
  if (Crc32c(payload) != header.payload_crc) {
    return Err(ErrorCode::kCorrupt, "the payload of a frame is damaged");
  }
  const int64_t now_us = clock_.NowMicros();
  if (header.type == FrameType::kData && (header.flags & kFlagBackToBack) != 0) {
    stats_.wire_bytes += kFrameHeaderBytes + payload.size();
    stats_.wire_us += now_us - last_frame_us_;
  }
  last_frame_us_ = now_us;
  SharedBytes shared(std::move(buffer.owner), payload);
  switch (header.type) {
    case FrameType::kHello:
      return OnHelloFrame(payload);
    case FrameType::kClose: {
      KVIK_ASSIGN(const Reason reason, DecodeReason(payload));
      return reason.error.Wrap(peer_ ? "the peer closed the connection" : "refused by the peer");
    }
    case FrameType::kOpen:
      return OnOpenFrame(header, shared);
    case FrameType::kData:
      return OnDataFrame(header, std::move(shared));
    case FrameType::kCredit:
      return OnCreditFrame(header, payload);
    case FrameType::kCancel:
      return OnCancelFrame(header, payload);
    case FrameType::kPing:
      PushControl(FrameType::kPong, 0, std::vector<std::byte>(payload.begin(), payload.end()));
      return {};
    case FrameType::kPong: {
      PayloadReader reader(payload);
      const int64_t rtt_us = now_us - static_cast<int64_t>(reader.Get<uint64_t>());
      KVIK_TRY(reader.Done("a pong"));
      if (rtt_us >= 0 && rtt_us <= options_.limits.peer_timeout_us) {
        rtts_us_[rtt_count_++ % rtts_us_.size()] = std::max<int64_t>(rtt_us, 1);
        stats_.rtt_us = *std::min_element(
            rtts_us_.begin(),
            rtts_us_.begin() + static_cast<ptrdiff_t>(std::min(rtt_count_, rtts_us_.size())));
      }
      return {};
    }
    case FrameType::kDrain: {
      KVIK_ASSIGN(Reason reason, DecodeReason(payload));
      peer_drains_ = std::move(reason.error.message);
      return {};
    }
  }
  return {};
}

Result<void> Session::OnHelloFrame(std::span<const std::byte> payload) {
  PayloadReader reader(payload);
  PeerLimits limits;
  limits.max_frame_bytes = reader.Get<uint32_t>();
  limits.window_bytes = reader.Get<uint32_t>();
  limits.max_streams = reader.Get<uint32_t>();
  KVIK_ASSIGN(Hello hello, DecodeHello(payload.last(reader.rest())));
  ConnectionLimits judged;
  judged.max_frame_bytes = limits.max_frame_bytes;
  judged.window_bytes = limits.window_bytes;
  judged.max_streams = limits.max_streams;
  KVIK_TRY(CheckLimits(judged));
  KVIK_TRY(CheckPeer(options_.hello, hello, options_.policy));
  if (!connecting_) {
    PushHello();
  }
  peer_limits_ = limits;
  peer_ = std::move(hello);
  last_ping_us_ = clock_.NowMicros() - options_.limits.heartbeat_us;  // the first ping at once
  events_.OnHello(*peer_);
  return {};
}

Result<void> Session::OnOpenFrame(const FrameHeader& header, const SharedBytes& payload) {
  const bool mine = (header.stream % 2 == 1) == connecting_;
  if (header.stream == 0 || mine || header.stream <= highest_peer_stream_ ||
      (header.flags & ~kFlagLast) != 0) {
    return Err(ErrorCode::kCorrupt, "stream %u cannot be opened", header.stream);
  }
  highest_peer_stream_ = header.stream;
  PayloadReader reader(payload.span());
  const auto method = reader.Get<uint16_t>();
  const auto priority = reader.Get<uint8_t>();
  const auto left_us = reader.Get<uint64_t>();
  if (reader.failed()) {
    return Err(ErrorCode::kCorrupt, "an open frame of %zu bytes", payload.size_bytes());
  }
  if (draining_ || peer_streams_ >= options_.limits.max_streams) {
    PushControl(FrameType::kCancel, header.stream,
                EncodeReason(draining_ ? Err(ErrorCode::kUnavailable, "no more work is taken here")
                                       : Err(ErrorCode::kExhausted, "more than %zu streams",
                                             options_.limits.max_streams)));
    return {};
  }
  StreamState& state = Add(header.stream);
  state.announced = true;
  state.priority = priority;
  state.received_last = (header.flags & kFlagLast) != 0;
  const int64_t now_us = clock_.NowMicros();
  if (left_us > 0 && left_us < static_cast<uint64_t>(kNever - now_us)) {
    state.deadline_us = now_us + static_cast<int64_t>(left_us);
  }
  ++peer_streams_;
  state.budget = events_.OnOpened(header.stream, method, state.deadline_us, state.received_last,
                                  payload.Slice(kOpenFixedBytes, reader.rest()));
  return {};
}

Result<void> Session::OnDataFrame(const FrameHeader& header, SharedBytes payload) {
  StreamState* const state = Find(header.stream);
  if (state == nullptr) {
    return {};
  }
  const int64_t now_us = clock_.NowMicros();
  if (state->stats.first_message_us == 0) {
    state->stats.first_message_us = now_us;
  }
  state->stats.last_message_us = now_us;
  state->stats.received_bytes += payload.size_bytes();
  state->received_last = (header.flags & kFlagLast) != 0;
  Message message;
  message.kind = header.kind;
  message.tag = header.tag;
  message.last = state->received_last;
  message.more = (header.flags & kFlagMore) != 0;
  message.bytes = std::move(payload);
  events_.OnMessage(header.stream, std::move(message));
  EndIfDone(header.stream, *state);
  return {};
}

Result<void> Session::OnCreditFrame(const FrameHeader& header, std::span<const std::byte> payload) {
  KVIK_TRY(CheckStreamNumber(header.stream));
  PayloadReader reader(payload);
  const auto bytes = reader.Get<uint32_t>();
  KVIK_TRY(reader.Done("a credit"));
  StreamState* const state = Find(header.stream);
  if (state == nullptr) {
    return {};
  }
  if (state->send_credit + int64_t{bytes} > int64_t{peer_limits_.window_bytes}) {
    return Err(ErrorCode::kCorrupt, "more credit on stream %u than its window", header.stream);
  }
  state->send_credit += bytes;
  List(header.stream, *state);
  return {};
}

Result<void> Session::OnCancelFrame(const FrameHeader& header, std::span<const std::byte> payload) {
  KVIK_TRY(CheckStreamNumber(header.stream));
  KVIK_ASSIGN(const Reason reason, DecodeReason(payload));
  if (Find(header.stream) != nullptr) {
    End(header.stream, reason.error);
  }
  return {};
}

}  // namespace kvik::transfer
