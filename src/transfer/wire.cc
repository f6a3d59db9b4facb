// SPDX-License-Identifier: Apache-2.0
#include "transfer/wire.h"

#include <cstring>

#include "base/crc32c.h"
#include "transfer/hello.h"
#include "transfer/payload.h"

namespace kvik::transfer {
namespace {

//  offset  size  field
//       0     2  magic "KT"
//       2     1  version
//       3     1  type
//       4     1  flags
//       5     1  kind
//       6     2  reserved, 0
//       8     4  stream
//      12     4  tag
//      16     4  sequence
//      20     4  payload bytes
//      24     4  CRC32C of the payload
//      28     4  CRC32C of bytes 0 to 27
constexpr size_t kCrcOffset = 28;

template <typename T>
void Store(HeaderBytes& bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

template <typename T>
T Load(std::span<const std::byte, kFrameHeaderBytes> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

}  // namespace

HeaderBytes EncodeHeader(const FrameHeader& header) {
  HeaderBytes bytes{};
  bytes[0] = std::byte{'K'};
  bytes[1] = std::byte{'T'};
  bytes[2] = std::byte{kProtocolVersion};
  bytes[3] = static_cast<std::byte>(header.type);
  bytes[4] = std::byte{header.flags};
  bytes[5] = std::byte{header.kind};
  Store(bytes, 8, header.stream);
  Store(bytes, 12, header.tag);
  Store(bytes, 16, header.sequence);
  Store(bytes, 20, header.payload_bytes);
  Store(bytes, 24, header.payload_crc);
  Store(bytes, kCrcOffset, Crc32c(std::span(bytes).first(kCrcOffset)));
  return bytes;
}

Result<FrameHeader> DecodeHeader(std::span<const std::byte, kFrameHeaderBytes> bytes) {
  if (bytes[0] != std::byte{'K'} || bytes[1] != std::byte{'T'}) {
    return Err(ErrorCode::kCorrupt, "not a frame of the transfer protocol");
  }
  // Before the CRC: other versions may have another header.
  if (bytes[2] != std::byte{kProtocolVersion}) {
    return Err(ErrorCode::kUnsupported, "protocol version %d; this side speaks version %d",
               static_cast<int>(bytes[2]), static_cast<int>(kProtocolVersion));
  }
  if (Load<uint32_t>(bytes, kCrcOffset) != Crc32c(bytes.first(kCrcOffset))) {
    return Err(ErrorCode::kCorrupt, "the header of a frame is damaged");
  }
  FrameHeader header;
  const auto type = static_cast<uint8_t>(bytes[3]);
  if (type < static_cast<uint8_t>(FrameType::kHello) ||
      type > static_cast<uint8_t>(FrameType::kDrain)) {
    return Err(ErrorCode::kUnsupported, "unknown type of frame %d", type);
  }
  header.type = static_cast<FrameType>(type);
  header.flags = static_cast<uint8_t>(bytes[4]);
  header.kind = static_cast<uint8_t>(bytes[5]);
  header.stream = Load<uint32_t>(bytes, 8);
  header.tag = Load<uint32_t>(bytes, 12);
  header.sequence = Load<uint32_t>(bytes, 16);
  header.payload_bytes = Load<uint32_t>(bytes, 20);
  header.payload_crc = Load<uint32_t>(bytes, 24);
  if (Load<uint16_t>(bytes, 6) != 0 ||
      (header.flags & ~(kFlagLast | kFlagBackToBack | kFlagMore)) != 0) {
    return Err(ErrorCode::kUnsupported, "unknown flags in the header of a frame");
  }
  return header;
}

std::vector<std::byte> EncodeReason(const Error& error) {
  const std::string_view text = std::string_view(error.message).substr(0, kMaxReasonBytes);
  const auto text_bytes = static_cast<uint16_t>(text.size());
  std::vector<std::byte> payload(3 + text.size());
  payload[0] = static_cast<std::byte>(error.code);
  std::memcpy(payload.data() + 1, &text_bytes, sizeof text_bytes);
  std::memcpy(payload.data() + 3, text.data(), text.size());
  return payload;
}

Result<Reason> DecodeReason(std::span<const std::byte> payload) {
  PayloadReader reader(payload);
  Error error;
  const auto code = reader.Get<uint8_t>();
  error.message = reader.GetText(kMaxReasonBytes);
  KVIK_TRY(reader.Done("a reason"));
  // Codes of later versions are taken for the one that promises least.
  error.code = code <= static_cast<uint8_t>(ErrorCode::kInternal) ? static_cast<ErrorCode>(code)
                                                                  : ErrorCode::kInternal;
  return Reason{std::move(error)};
}

}  // namespace kvik::transfer
