// SPDX-License-Identifier: Apache-2.0
// codec/frame_stream.h: frames one after the other, as a file or over a connection.
//
//   stream  = header, frames, end
//   header  = "KvS" version, u32 CRC of what follows, u64 model fingerprint, u64 profile hash,
//             u16 size and bytes of the pipeline's canonical string
//   end     = "KvE" version, u32 CRC of what follows, u64 frames, u64 bytes of all frames
//
// A stream that has no end was cut: its frames may be used, since each carries its own CRC, but it
// is not complete. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "codec/frame.h"

namespace kvik::codec {

// What a stream says of all its frames. The pipeline is text from outside: parse it.
struct StreamHeader {
  uint64_t model_fingerprint = 0;
  uint64_t profile_hash = 0;
  std::string pipeline;
  friend bool operator==(const StreamHeader&, const StreamHeader&) = default;
};

// Appends a stream to a buffer that it borrows; the caller may take bytes out of it at any time.
class StreamWriter {
 public:
  StreamWriter(const FrameCodec& codec, std::vector<std::byte>& out);

  // Encodes and appends one frame; its size. Fails as FrameCodec::Encode, and then nothing was
  // appended.
  Result<size_t> Add(const KvRows& rows, FrameParts parts, Workspace& workspace);
  // Appends a frame that was encoded elsewhere. REQUIRES: it is one of this codec's.
  void AddEncoded(std::span<const std::byte> frame);
  // Appends the end. Nothing may be added afterwards.
  void Finish();

  [[nodiscard]] uint64_t frames() const { return frames_; }
  [[nodiscard]] uint64_t frame_bytes() const { return frame_bytes_; }

 private:
  const FrameCodec& codec_;
  std::vector<std::byte>& out_;
  uint64_t frames_ = 0;
  uint64_t frame_bytes_ = 0;
  bool finished_ = false;
};

// Cuts a stream that comes in pieces of any size into its frames. Holds at most one incomplete
// frame, whose bytes it has really received: no size is believed before its bytes are there.
class StreamReader {
 public:
  // Frames above `max_frame_bytes` are refused.
  explicit StreamReader(size_t max_frame_bytes = size_t{64} << 20);

  // The next bytes of the stream. Spans that Next returned are no longer valid.
  void Feed(std::span<const std::byte> bytes);

  // The next whole frame of what was fed; nothing: feed more, or the stream has ended. The frame's
  // CRC is not checked yet: FrameCodec::Decode does. kCorrupt, kUnsupported: this is not a stream,
  // or it is damaged where frames meet; then it cannot be read on.
  Result<std::optional<std::span<const std::byte>>> Next();

  // Known once Next returned a frame or the end was read.
  [[nodiscard]] const std::optional<StreamHeader>& header() const { return header_; }
  // The end was read, and nothing was missing.
  [[nodiscard]] bool complete() const { return complete_; }
  [[nodiscard]] uint64_t frames() const { return frames_; }

 private:
  Result<bool> ReadHeader();  // false: more bytes are needed
  Result<bool> ReadEnd();

  size_t max_frame_bytes_;
  std::vector<std::byte> buffer_;
  size_t at_ = 0;  // of buffer_: what lies before is used up
  std::optional<StreamHeader> header_;
  uint64_t frames_ = 0;
  uint64_t frame_bytes_ = 0;
  bool complete_ = false;
};

}  // namespace kvik::codec
