// SPDX-License-Identifier: Apache-2.0
// Any bytes from a peer end a session or do not; nothing is kept, and no size is believed. The
// first byte says whether the rest is fed as it is, made into frames whose CRCs and sequence
// numbers are right (so that what is tried is what they say), or given to the decoders of the
// object protocol.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "transfer/hello.h"
#include "transfer/link_spec.h"
#include "transfer/objects.h"
#include "transfer/payload.h"
#include "transfer/session.h"
#include "transfer/testing/hello_payload.h"

namespace kvik::transfer {
namespace {

constexpr size_t kMaxFrame = 8192;
constexpr size_t kWindow = 32 << 10;
constexpr size_t kMaxStreams = 4;

class Events final : public SessionEvents {
 public:
  void OnHello(const Hello& /*peer*/) override {}
  std::shared_ptr<SendBudget> OnOpened(uint32_t /*stream*/, uint16_t /*method*/,
                                       int64_t /*deadline_us*/, bool /*request_only*/,
                                       SharedBytes /*request*/) override {
    ++open;
    return std::make_shared<SendBudget>(1 << 16);
  }
  void OnMessage(uint32_t /*stream*/, Message message) override {
    held_bytes += message.bytes.size_bytes();
    held.push_back(std::move(message));
    KVIK_CHECK(held_bytes <= kWindow * 4096, "windows do not hold");
  }
  void OnWritable(uint32_t /*stream*/) override {}
  void OnEnded(uint32_t /*stream*/, const Result<void>& /*outcome*/,
               const StreamStats& /*stats*/) override {
    --open;
  }
  int open = 0;
  size_t held_bytes = 0;
  std::vector<Message> held;
};

class Fuzzed {
 public:
  Fuzzed() {
    Session::Options options;
    options.limits.max_frame_bytes = kMaxFrame;
    options.limits.window_bytes = kWindow;
    options.limits.max_streams = kMaxStreams;
    session_ = std::make_unique<Session>(
        options, /*connecting=*/false, clock_, pool_, [](uint32_t) {}, events_);
  }
  ~Fuzzed() {
    KVIK_CHECK(events_.open >= 0 && events_.open <= static_cast<int>(kMaxStreams));
    session_->Fail(Error{ErrorCode::kUnavailable, "over"});
    KVIK_CHECK(events_.open == 0);
    events_.held.clear();
    session_.reset();
    KVIK_CHECK(pool_->live_buffers() == 0);
  }

  bool Feed(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      size_t taken = 0;
      for (const iovec& part : session_->ReadParts()) {
        const size_t size = std::min(part.iov_len, bytes.size());
        if (size > 0) {
          std::memcpy(part.iov_base, bytes.data(), size);
          bytes = bytes.subspan(size);
          taken += size;
        }
      }
      if (!session_->Received(taken) || !session_->Tick()) {
        return false;
      }
    }
    return true;
  }

  bool Frame(FrameHeader header, std::span<const std::byte> payload) {
    header.sequence = sequence_++;
    header.payload_bytes = static_cast<uint32_t>(payload.size());
    header.payload_crc = Crc32c(payload);
    return Feed(EncodeHeader(header)) && Feed(payload);
  }

  bool Greet() {
    FrameHeader header;
    header.type = FrameType::kHello;
    return Frame(header, testing::HelloPayload());
  }

  void Read() {
    for (auto parts = session_->WriteParts(false); !parts.empty();
         parts = session_->WriteParts(false)) {
      size_t size_bytes = 0;
      for (const iovec& part : parts) {
        size_bytes += part.iov_len;
      }
      session_->Written(size_bytes);
    }
  }

 private:
  ManualClock clock_{1000};
  std::shared_ptr<ReceivePool> pool_ = std::make_shared<ReceivePool>(kMaxFrame, 4);
  Events events_;
  std::unique_ptr<Session> session_;
  uint32_t sequence_ = 0;
};

void Frames(std::span<const std::byte> bytes, bool greet) {
  Fuzzed peer;
  if (greet && !peer.Greet()) {
    return;
  }
  // type, flags, kind, stream, u16 size and so many bytes
  while (bytes.size() >= 6) {
    FrameHeader header;
    header.type = static_cast<FrameType>(1 + static_cast<uint8_t>(bytes[0]) % 9);
    header.flags = static_cast<uint8_t>(bytes[1]) & 7;
    header.kind = static_cast<uint8_t>(bytes[2]);
    header.stream = static_cast<uint8_t>(bytes[3]) % 12;
    uint16_t size_bytes = 0;
    std::memcpy(&size_bytes, bytes.data() + 4, sizeof size_bytes);
    bytes = bytes.subspan(6);
    const size_t taken = std::min<size_t>(size_bytes, bytes.size());
    if (!peer.Frame(header, bytes.first(taken))) {
      return;
    }
    bytes = bytes.subspan(taken);
    if ((header.kind & 1) != 0) {
      peer.Read();
    }
  }
}

// What decodes encodes to the same bytes again.
template <typename T>
void Same(const Result<T>& decoded, std::span<const std::byte> bytes) {
  if (decoded) {
    Payload encoded;
    if constexpr (std::is_same_v<decltype(Encode(*decoded)), Payload>) {
      encoded = Encode(*decoded);
    } else {
      auto result = Encode(*decoded);
      KVIK_CHECK(result.has_value());
      encoded = std::move(*result);
    }
    KVIK_CHECK(std::ranges::equal(encoded, bytes));
  }
}

void Decoders(std::span<const std::byte> bytes) {
  const auto lookup = DecodeLookupRequest(bytes);
  Same(lookup, bytes);
  Same(DecodeGetRequest(bytes), bytes);
  Same(DecodePutRequest(bytes), bytes);
  Same(DecodeRemoveRequest(bytes), bytes);
  Same(DecodeObjectInfo(bytes), bytes);
  if (const auto end = DecodeObjectEnd(bytes)) {
    KVIK_CHECK(std::ranges::equal(EncodeObjectEnd(end->first, end->second), bytes));
  }
  LookupRequest request;
  request.hashes.resize(5);
  const auto found = DecodeFoundObjects(bytes, request);
  if (found) {
    KVIK_CHECK(std::ranges::equal(Encode(std::span(*found)), bytes));
  }
  const auto hello = DecodeHello(bytes);
  if (hello) {
    std::vector<std::byte> encoded;
    KVIK_CHECK(EncodeHello(*hello, encoded).has_value() && std::ranges::equal(encoded, bytes));
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto spec = LinkSpec::Parse(text);
  if (spec) {
    KVIK_CHECK(LinkSpec::Parse(spec->ToString()).has_value());
  }
}

}  // namespace
}  // namespace kvik::transfer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  if (size_bytes == 0) {
    return 0;
  }
  const auto bytes = std::as_bytes(std::span(data + 1, size_bytes - 1));
  switch (data[0] % 4) {
    case 0: {
      kvik::transfer::Fuzzed peer;
      (void)peer.Feed(bytes);
      break;
    }
    case 1:
      kvik::transfer::Frames(bytes, /*greet=*/true);
      break;
    case 2:
      kvik::transfer::Frames(bytes, /*greet=*/false);
      break;
    default:
      kvik::transfer::Decoders(bytes);
  }
  return 0;
}
