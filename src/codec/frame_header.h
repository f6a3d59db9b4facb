// SPDX-License-Identifier: Apache-2.0
// codec/frame_header.h: what a frame says of itself, before any payload is decoded. The offsets are
// in docs/wire-format.md. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kv/geometry.h"

namespace kvik::codec {

constexpr int32_t kMaxFrameTokens = 65536;
constexpr uint8_t kFrameVersion = 1;
constexpr size_t kFrameHeaderBytes = 56;

// How true decoded values are to what was encoded.
enum class Fidelity : uint8_t {
  kExact = 0,   // the same bf16, bit for bit
  kLossy = 1,   // approximated
  kMasked = 2,  // approximated, and some slots are dropped: see DecodedFrame::dropped
};

// Which parts a frame holds.
enum class FrameParts : uint8_t { kKey = 1, kValue = 2, kBoth = 3 };
constexpr bool Has(FrameParts parts, kv::KvPart part) {
  return (static_cast<uint8_t>(parts) & (part == kv::KvPart::kKey ? 1U : 2U)) != 0;
}

struct FrameHeader {
  uint64_t model_fingerprint = 0;
  uint64_t profile_hash = 0;  // pipeline and side information
  uint32_t pipeline_id = 0;   // low half of the pipeline's hash: the same with any calibration
  int32_t layer = 0;
  FrameParts parts = FrameParts::kBoth;
  int32_t first_token = 0;
  int32_t num_tokens = 0;
  int32_t prompt_tokens = 0;
  int32_t first_head = 0;
  int32_t num_heads = 0;
  int32_t head_dim = 0;
  Fidelity fidelity = Fidelity::kExact;
  uint32_t payload_bytes = 0;

  [[nodiscard]] size_t frame_bytes() const { return kFrameHeaderBytes + payload_bytes; }
};

// The header of a frame that starts at `bytes`, which may go on after it. kCorrupt:
// truncated, bad magic, CRC, sizes that contradict each other; kUnsupported: another version.
// Allocates nothing.
Result<FrameHeader> ReadFrameHeader(std::span<const std::byte> bytes);

// Bytes of the frame that starts at `bytes`, of which kFrameHeaderBytes are enough: for readers to
// whom a frame comes in pieces. Nothing but magic and version is checked: the size is a claim.
// kCorrupt, kUnsupported as above.
Result<size_t> ClaimedFrameBytes(std::span<const std::byte> bytes);

// Appends a header whose CRC and payload_bytes are left to SealFrame.
void AppendFrameHeader(const FrameHeader& header, std::vector<std::byte>& out);

// Completes a frame, header and payload: how many bytes it has, then its CRC. REQUIRES: fewer than
// 2^32 bytes of payload.
void SealFrame(std::span<std::byte> frame);

}  // namespace kvik::codec
