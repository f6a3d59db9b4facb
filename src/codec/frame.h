// SPDX-License-Identifier: Apache-2.0
// codec/frame.h: one layer of some tokens' KV as bytes, and back.
//
// A frame holds the keys, the values or both of one layer at consecutive positions [first_token,
// first_token + num_tokens). Given the profile it was written with (pipeline and calibrated side
// information) it is self-contained: frames are encoded and decoded alone, in any order, on any
// ISA and any number of threads, to the same bytes and the same values. docs/wire-format.md is the
// prose twin of this header.
//
// Values that would spoil their neighbours (not finite, or above kLargestValue) are taken out
// before the first stage, stored as they are, and put back by the decoder; in between a value of
// the same channel stands in their place. When a tile cannot be represented by the pipeline at all
// (a scale overflows, too many such values), or not in fewer bytes, its bf16 bits are stored as
// they are. Nothing is ever approximated silently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/float16.h"
#include "base/isa.h"
#include "base/result.h"
#include "codec/frame_header.h"
#include "codec/model_facts.h"
#include "codec/pipeline.h"
#include "codec/side_info.h"
#include "codec/tile.h"

namespace kvik::codec {

constexpr float kLargestValue = 16384.0F;  // 2^14: sums and ranges of such values fit a half

// Rows of one layer to encode, borrowed. Each part [heads, num_tokens, head_dim] with a stride of
// `head_stride` values between heads (so a range of tokens of a longer tensor can be named); unused
// when the frame does not hold it.
struct KvRows {
  int32_t layer = 0;
  int32_t first_token = 0;
  int32_t num_tokens = 0;
  int32_t prompt_tokens = 0;  // TileContext::prompt_tokens
  size_t head_stride = 0;
  const Bf16* keys = nullptr;
  const Bf16* values = nullptr;
};

// Slots of a kv head that were not kept: positions [first_token, end_token).
struct DroppedRange {
  int32_t kv_head = 0;
  int32_t first_token = 0;
  int32_t end_token = 0;
  friend bool operator==(const DroppedRange&, const DroppedRange&) = default;
};

// Where decoded rows go: each part [heads, num_tokens, head_dim] with the given stride between
// heads; null parts are skipped. Rows of dropped slots are zeroed. A frame that holds another
// number of tokens or heads is refused, so nothing is ever allocated for more than the caller
// expects.
struct KvRowsOut {
  int32_t num_tokens = 0;
  int32_t num_heads = 0;
  size_t head_stride = 0;
  Bf16* keys = nullptr;
  Bf16* values = nullptr;
  // The rows are more than the caches hold and are not read again soon: write around the caches.
  bool streaming = false;
};

struct DecodedFrame {
  FrameHeader header;
  std::vector<DroppedRange> dropped;  // by head, ascending
};

// Scratch of one thread; grows to the largest tile and stays.
struct Workspace {
  Tile tile;
  SymbolPlanes planes;
  std::vector<std::vector<int32_t>> positions;  // by stage
  std::vector<std::byte> part;
  std::vector<std::byte> side;
  std::vector<std::byte> payload;
  std::vector<uint32_t> exceptions;
};

// A pipeline made ready for one model. Immutable; encode and decode from any number of threads,
// each with its own workspace.
class FrameCodec {
 public:
  // `side_info` may be null for pipelines that calibrate themselves. kInvalidInput, kUnsupported:
  // as StageModule's makers say.
  static Result<std::unique_ptr<FrameCodec>> Create(const PipelineSpec& pipeline,
                                                    const ModelFacts& model,
                                                    std::shared_ptr<const SideInfo> side_info,
                                                    Isa isa);
  ~FrameCodec();
  FrameCodec(const FrameCodec&) = delete;
  FrameCodec& operator=(const FrameCodec&) = delete;

  [[nodiscard]] const PipelineSpec& pipeline() const;
  [[nodiscard]] const ModelFacts& model() const;
  // Of the canonical pipeline and every calibrated tensor it uses; what frames carry.
  [[nodiscard]] uint64_t profile_hash() const;
  [[nodiscard]] bool lossy() const;

  // Appends one frame to `out` and returns its size. kInvalidInput: rows outside the model, parts
  // that are asked for and null, more than kMaxFrameTokens tokens, none.
  Result<size_t> Encode(const KvRows& rows, FrameParts parts, Workspace& workspace,
                        std::vector<std::byte>& out) const;

  // Decodes the frame at the start of `bytes`. kCorrupt: as ReadFrameHeader, or a payload that
  // contradicts itself; kInvalidInput: another model or profile. On failure `out` may be partly
  // written and must not be used.
  Result<DecodedFrame> Decode(std::span<const std::byte> bytes, Workspace& workspace,
                              const KvRowsOut& out) const;

 private:
  struct Impl;
  explicit FrameCodec(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvik::codec
