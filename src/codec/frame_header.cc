// SPDX-License-Identifier: Apache-2.0
#include "codec/frame_header.h"

#include <cstring>

#include "base/check.h"
#include "base/crc32c.h"
#include "codec/byte_stream.h"

namespace kvik::codec {
namespace {

constexpr uint32_t kMagic = 0x0046764BU;  // "KvF", then the version
constexpr size_t kCrcOffset = 4;
constexpr size_t kCrcEnd = 8;
constexpr size_t kPayloadBytesOffset = 28;
constexpr uint8_t kTokenMajor = 0;  // the only layout: rows of a head one after the other

}  // namespace

void AppendFrameHeader(const FrameHeader& header, std::vector<std::byte>& out) {
  ByteWriter writer(out);
  writer.U32(kMagic | static_cast<uint32_t>(kFrameVersion) << 24);
  writer.U32(0);  // CRC
  writer.U64(header.model_fingerprint);
  writer.U64(header.profile_hash);
  writer.U32(header.pipeline_id);
  writer.U32(0);  // payload bytes
  writer.U32(static_cast<uint32_t>(header.first_token));
  writer.U32(static_cast<uint32_t>(header.num_tokens));
  writer.U32(static_cast<uint32_t>(header.prompt_tokens));
  writer.U16(static_cast<uint16_t>(header.layer));
  writer.U16(static_cast<uint16_t>(header.first_head));
  writer.U16(static_cast<uint16_t>(header.num_heads));
  writer.U16(static_cast<uint16_t>(header.head_dim));
  writer.U8(static_cast<uint8_t>(header.parts));
  writer.U8(static_cast<uint8_t>(header.fidelity));
  writer.U8(kTokenMajor);
  writer.U8(0);
}

void SealFrame(std::span<std::byte> frame) {
  KVIK_CHECK(frame.size() >= kFrameHeaderBytes && frame.size() - kFrameHeaderBytes <= UINT32_MAX);
  const auto payload_bytes = static_cast<uint32_t>(frame.size() - kFrameHeaderBytes);
  std::memcpy(frame.data() + kPayloadBytesOffset, &payload_bytes, sizeof(payload_bytes));
  const uint32_t crc = Crc32c(frame.subspan(kCrcEnd));
  std::memcpy(frame.data() + kCrcOffset, &crc, sizeof(crc));
}

Result<size_t> ClaimedFrameBytes(std::span<const std::byte> bytes) {
  if (bytes.size() < kFrameHeaderBytes) {
    return Err(ErrorCode::kCorrupt, "%zu bytes are not a frame: its header alone has %zu",
               bytes.size(), kFrameHeaderBytes);
  }
  const auto magic = LoadAt<uint32_t>(bytes, 0);
  if ((magic & 0xFFFFFFU) != kMagic) {
    return Err(ErrorCode::kCorrupt, "not a frame: it starts with %08x", magic);
  }
  if (magic >> 24 != kFrameVersion) {
    return Err(ErrorCode::kUnsupported, "a frame of version %u; this build reads version %u",
               magic >> 24, kFrameVersion);
  }
  return kFrameHeaderBytes + size_t{LoadAt<uint32_t>(bytes, kPayloadBytesOffset)};
}

Result<FrameHeader> ReadFrameHeader(std::span<const std::byte> bytes) {
  KVIK_TRY(ClaimedFrameBytes(bytes));
  FrameHeader header;
  header.model_fingerprint = LoadAt<uint64_t>(bytes, 8);
  header.profile_hash = LoadAt<uint64_t>(bytes, 16);
  header.pipeline_id = LoadAt<uint32_t>(bytes, 24);
  header.payload_bytes = LoadAt<uint32_t>(bytes, kPayloadBytesOffset);
  const auto first_token = LoadAt<uint32_t>(bytes, 32);
  const auto num_tokens = LoadAt<uint32_t>(bytes, 36);
  const auto prompt_tokens = LoadAt<uint32_t>(bytes, 40);
  header.layer = LoadAt<uint16_t>(bytes, 44);
  header.first_head = LoadAt<uint16_t>(bytes, 46);
  header.num_heads = LoadAt<uint16_t>(bytes, 48);
  header.head_dim = LoadAt<uint16_t>(bytes, 50);
  const auto parts = LoadAt<uint8_t>(bytes, 52);
  const auto fidelity = LoadAt<uint8_t>(bytes, 53);
  const auto layout = LoadAt<uint8_t>(bytes, 54);
  const auto reserved = LoadAt<uint8_t>(bytes, 55);
  if (header.payload_bytes > bytes.size() - kFrameHeaderBytes) {
    return Err(ErrorCode::kCorrupt, "the frame is cut short: %u bytes of payload, %zu are there",
               header.payload_bytes, bytes.size() - kFrameHeaderBytes);
  }
  const uint32_t crc = Crc32c(bytes.subspan(kCrcEnd, header.frame_bytes() - kCrcEnd));
  if (crc != LoadAt<uint32_t>(bytes, kCrcOffset)) {
    return Err(ErrorCode::kCorrupt, "the frame's CRC is %08x, its bytes give %08x",
               LoadAt<uint32_t>(bytes, kCrcOffset), crc);
  }
  if (num_tokens == 0 || num_tokens > static_cast<uint32_t>(kMaxFrameTokens) ||
      first_token > static_cast<uint32_t>(INT32_MAX) - num_tokens ||
      prompt_tokens > static_cast<uint32_t>(INT32_MAX) || header.num_heads == 0 ||
      header.head_dim == 0) {
    return Err(ErrorCode::kCorrupt, "a frame of tokens [%u, +%u), %d heads of %d channels",
               first_token, num_tokens, header.num_heads, header.head_dim);
  }
  if (parts < 1 || parts > 3 || fidelity > static_cast<uint8_t>(Fidelity::kMasked) ||
      layout != kTokenMajor || reserved != 0) {
    return Err(ErrorCode::kCorrupt, "a frame with parts %u, fidelity %u, layout %u, reserved %u",
               parts, fidelity, layout, reserved);
  }
  header.first_token = static_cast<int32_t>(first_token);
  header.num_tokens = static_cast<int32_t>(num_tokens);
  header.prompt_tokens = static_cast<int32_t>(prompt_tokens);
  header.parts = static_cast<FrameParts>(parts);
  header.fidelity = static_cast<Fidelity>(fidelity);
  return header;
}

}  // namespace kvik::codec
