// SPDX-License-Identifier: Apache-2.0
// transfer/wire.h: the header of a frame; docs/transfer.md is its prose twin.
//
// A connection is a sequence of frames in each direction. A header has a CRC of its own, so that
// the size of the payload can be believed before the payload is there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace kvik::transfer {

inline constexpr size_t kFrameHeaderBytes = 32;

enum class FrameType : uint8_t {
  kHello = 1,   // first in each direction: Hello and limits
  kClose = 2,   // the connection ends: why. Instead of a hello: the peer is refused
  kOpen = 3,    // a new stream: method, deadline, request
  kData = 4,    // a message of a stream
  kCredit = 5,  // the receiver of a stream has dropped so many bytes
  kCancel = 6,  // the stream is over: code and reason
  kPing = 7,
  kPong = 8,
  kDrain = 9,  // open no more streams: reason
};

// Flags of kOpen and kData.
inline constexpr uint8_t kFlagLast = 1;        // nothing follows from this side on the stream
inline constexpr uint8_t kFlagBackToBack = 2;  // left right behind the frame before it
inline constexpr uint8_t kFlagMore = 4;  // kData: the message goes on in the stream's next frame

struct FrameHeader {
  FrameType type = FrameType::kData;
  uint8_t flags = 0;
  uint8_t kind = 0;  // kData: the application's
  uint32_t stream = 0;
  uint32_t tag = 0;       // kData: the application's
  uint32_t sequence = 0;  // counts the frames of this direction, from 0
  uint32_t payload_bytes = 0;
  uint32_t payload_crc = 0;
  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

using HeaderBytes = std::array<std::byte, kFrameHeaderBytes>;
[[nodiscard]] HeaderBytes EncodeHeader(const FrameHeader& header);

// kCorrupt: not a header, or damaged. kUnsupported: of another version. Says nothing about whether
// the frame makes sense here.
[[nodiscard]] Result<FrameHeader> DecodeHeader(std::span<const std::byte, kFrameHeaderBytes> bytes);

// Payloads of control frames: a reason is u8 code, u16 size and text of at most kMaxReasonBytes.
inline constexpr size_t kMaxReasonBytes = 1024;
[[nodiscard]] std::vector<std::byte> EncodeReason(const Error& error);
struct Reason {
  Error error;
};
[[nodiscard]] Result<Reason> DecodeReason(std::span<const std::byte> payload);

}  // namespace kvik::transfer
