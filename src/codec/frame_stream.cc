// SPDX-License-Identifier: Apache-2.0
#include "codec/frame_stream.h"

#include <cstring>

#include "base/check.h"
#include "base/crc32c.h"
#include "codec/byte_stream.h"

namespace kvik::codec {
namespace {

constexpr uint8_t kStreamVersion = 1;
constexpr uint32_t kStreamMagic = 0x0053764BU;  // "KvS"
constexpr uint32_t kEndMagic = 0x0045764BU;     // "KvE"
constexpr size_t kFixedHeaderBytes = 26;        // up to the pipeline's text
constexpr size_t kEndBytes = 24;
constexpr size_t kMaxPipelineBytes = 4096;

void Seal(std::vector<std::byte>& out, size_t first_byte) {
  const uint32_t crc = Crc32c(std::span(out).subspan(first_byte + 8));
  std::memcpy(out.data() + first_byte + 4, &crc, sizeof(crc));
}

// kCorrupt unless `bytes` start with this magic, in this build's version.
Result<void> CheckMagic(std::span<const std::byte> bytes, uint32_t magic, const char* what) {
  const auto found = LoadAt<uint32_t>(bytes, 0);
  if ((found & 0xFFFFFFU) != magic) {
    return Err(ErrorCode::kCorrupt, "%s should start here, not %08x", what, found);
  }
  if (found >> 24 != kStreamVersion) {
    return Err(ErrorCode::kUnsupported, "%s of version %u; this build reads version %u", what,
               found >> 24, kStreamVersion);
  }
  return {};
}

Result<void> CheckCrc(std::span<const std::byte> bytes, const char* what) {
  if (Crc32c(bytes.subspan(8)) != LoadAt<uint32_t>(bytes, 4)) {
    return Err(ErrorCode::kCorrupt, "the CRC of %s does not match", what);
  }
  return {};
}

}  // namespace

StreamWriter::StreamWriter(const FrameCodec& codec, std::vector<std::byte>& out)
    : codec_(codec), out_(out) {
  const std::string pipeline = codec.pipeline().ToString();
  KVIK_CHECK(pipeline.size() <= kMaxPipelineBytes);
  const size_t first_byte = out.size();
  ByteWriter writer(out);
  writer.U32(kStreamMagic | static_cast<uint32_t>(kStreamVersion) << 24);
  writer.U32(0);
  writer.U64(codec.model().fingerprint);
  writer.U64(codec.profile_hash());
  writer.U16(static_cast<uint16_t>(pipeline.size()));
  writer.Bytes(std::as_bytes(std::span(pipeline)));
  Seal(out, first_byte);
}

Result<size_t> StreamWriter::Add(const KvRows& rows, FrameParts parts, Workspace& workspace) {
  KVIK_CHECK(!finished_);
  KVIK_ASSIGN(const size_t size, codec_.Encode(rows, parts, workspace, out_));
  ++frames_;
  frame_bytes_ += size;
  return size;
}

void StreamWriter::AddEncoded(std::span<const std::byte> frame) {
  KVIK_CHECK(!finished_);
  out_.insert(out_.end(), frame.begin(), frame.end());
  ++frames_;
  frame_bytes_ += frame.size();
}

void StreamWriter::Finish() {
  KVIK_CHECK(!finished_);
  finished_ = true;
  const size_t first_byte = out_.size();
  ByteWriter writer(out_);
  writer.U32(kEndMagic | static_cast<uint32_t>(kStreamVersion) << 24);
  writer.U32(0);
  writer.U64(frames_);
  writer.U64(frame_bytes_);
  Seal(out_, first_byte);
}

StreamReader::StreamReader(size_t max_frame_bytes) : max_frame_bytes_(max_frame_bytes) {}

void StreamReader::Feed(std::span<const std::byte> bytes) {
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<ptrdiff_t>(at_));
  at_ = 0;
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

Result<bool> StreamReader::ReadHeader() {
  const auto rest = std::span<const std::byte>(buffer_).subspan(at_);
  if (rest.size() < 4) {
    return false;
  }
  KVIK_TRY(CheckMagic(rest, kStreamMagic, "a stream"));
  if (rest.size() < kFixedHeaderBytes) {
    return false;
  }
  const size_t pipeline_bytes = LoadAt<uint16_t>(rest, 24);
  if (pipeline_bytes > kMaxPipelineBytes) {
    return Err(ErrorCode::kCorrupt, "a stream whose pipeline has %zu characters", pipeline_bytes);
  }
  const size_t size = kFixedHeaderBytes + pipeline_bytes;
  if (rest.size() < size) {
    return false;
  }
  KVIK_TRY(CheckCrc(rest.first(size), "the stream's header"));
  StreamHeader header;
  header.model_fingerprint = LoadAt<uint64_t>(rest, 8);
  header.profile_hash = LoadAt<uint64_t>(rest, 16);
  header.pipeline.assign(reinterpret_cast<const char*>(rest.data()) + kFixedHeaderBytes,
                         pipeline_bytes);
  header_ = std::move(header);
  at_ += size;
  return true;
}

Result<bool> StreamReader::ReadEnd() {
  const auto rest = std::span<const std::byte>(buffer_).subspan(at_);
  KVIK_TRY(CheckMagic(rest, kEndMagic, "the stream's end"));
  if (rest.size() < kEndBytes) {
    return false;
  }
  KVIK_TRY(CheckCrc(rest.first(kEndBytes), "the stream's end"));
  if (LoadAt<uint64_t>(rest, 8) != frames_ || LoadAt<uint64_t>(rest, 16) != frame_bytes_) {
    return Err(
        ErrorCode::kCorrupt, "the stream had %llu frames of %llu bytes, %llu of %llu bytes came",
        static_cast<unsigned long long>(LoadAt<uint64_t>(rest, 8)),
        static_cast<unsigned long long>(LoadAt<uint64_t>(rest, 16)),
        static_cast<unsigned long long>(frames_), static_cast<unsigned long long>(frame_bytes_));
  }
  at_ += kEndBytes;
  complete_ = true;
  return true;
}

Result<std::optional<std::span<const std::byte>>> StreamReader::Next() {
  const std::optional<std::span<const std::byte>> nothing;
  if (!header_) {
    KVIK_ASSIGN(const bool read, ReadHeader());
    if (!read) {
      return nothing;
    }
  }
  const auto rest = std::span<const std::byte>(buffer_).subspan(at_);
  if (complete_) {
    if (!rest.empty()) {
      return Err(ErrorCode::kCorrupt, "%zu bytes follow the stream's end", rest.size());
    }
    return nothing;
  }
  if (rest.size() < 4) {
    return nothing;
  }
  if ((LoadAt<uint32_t>(rest, 0) & 0xFFFFFFU) == kEndMagic) {
    KVIK_TRY(ReadEnd());
    return complete_ && at_ < buffer_.size() ? Next() : nothing;
  }
  if (rest.size() < kFrameHeaderBytes) {
    return nothing;
  }
  KVIK_ASSIGN(const size_t size, ClaimedFrameBytes(rest));
  if (size > max_frame_bytes_) {
    return Err(ErrorCode::kCorrupt, "a frame of %zu bytes; at most %zu are taken", size,
               max_frame_bytes_);
  }
  if (rest.size() < size) {
    return nothing;
  }
  at_ += size;
  ++frames_;
  frame_bytes_ += size;
  return std::optional(rest.first(size));
}

}  // namespace kvik::codec
