// SPDX-License-Identifier: Apache-2.0
// connector/chunk_codec.h: blocks of the arena as the bytes of an object, and back.
//
// An object is a head (object_head.h) and a frame stream with one frame a layer, keys and values
// together, in the order of layers. Everything here works on one frame at a time with the scratch
// of one thread, so that layers are encoded and decoded on several threads and while they travel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/float16.h"
#include "base/result.h"
#include "base/types.h"
#include "codec/frame.h"
#include "codec/frame_stream.h"
#include "connector/object_head.h"
#include "kv/connector.h"
#include "kv/geometry.h"

namespace kvik::connector {

// Scratch of one thread.
struct CodecScratch {
  codec::Workspace workspace;
  std::vector<Bf16> keys;  // [kv_heads, tokens, head_dim]
  std::vector<Bf16> values;
};

// bf16 geometry of the model that `codec` is for. kInvalidInput tells what differs.
[[nodiscard]] Result<void> CheckGeometry(const kv::KvGeometry& geometry,
                                         const codec::ModelFacts& model);

// A chunk in the arena: block i of it is `blocks[i]`.
struct ChunkPages {
  const kv::KvGeometry* geometry = nullptr;
  std::span<std::byte> arena;
  int32_t first_block = 0;          // position of blocks[0] in its request, in blocks
  std::span<const BlockId> blocks;  // to decode: kNoBlock where the block is not wanted

  [[nodiscard]] int32_t first_token() const { return first_block * geometry->block_size_tokens; }
  [[nodiscard]] int32_t num_tokens() const {
    return static_cast<int32_t>(blocks.size()) * geometry->block_size_tokens;
  }
  // bf16 bytes of all its blocks.
  [[nodiscard]] size_t raw_bytes() const { return blocks.size() * geometry->bytes_per_block(); }
};

// Appends the frame of one layer. The bytes depend on the KV, its positions and the codec alone:
// every process makes the same object of the same KV.
Result<void> EncodeLayer(const codec::FrameCodec& codec, const ChunkPages& pages, int32_t layer,
                         CodecScratch& scratch, std::vector<std::byte>& out);

// All of it on this thread: a whole object. REQUIRES: `head` is of these pages and this codec.
Result<std::vector<std::byte>> EncodeChunk(const codec::FrameCodec& codec, const ObjectHead& head,
                                           const ChunkPages& pages, CodecScratch& scratch);

// The most bytes that a reader believes a frame or an object of these pages can have.
[[nodiscard]] size_t MaxFrameBytes(const ChunkPages& pages);
[[nodiscard]] size_t MaxObjectBytes(const ChunkPages& pages);

struct DecodedLayer {
  int32_t layer = 0;
  codec::Fidelity fidelity = codec::Fidelity::kExact;
  std::vector<kv::DroppedTokens> dropped;  // in wanted blocks, by head
};

// Decodes one frame into the wanted blocks. kCorrupt, kInvalidInput: damaged, or not what was asked
// for: another model, profile, position, number of tokens or heads, keys or values missing. Then
// the layer's pages may be partly written.
Result<DecodedLayer> DecodeLayer(const codec::FrameCodec& codec, std::span<const std::byte> frame,
                                 const ChunkPages& pages, CodecScratch& scratch);

// What was decoded of a chunk so far. Thread-compatible.
class LayerTally {
 public:
  explicit LayerTally(int32_t num_layers) : seen_(static_cast<size_t>(num_layers)) {}
  // kCorrupt: the layer came already.
  Result<void> Add(DecodedLayer layer);
  [[nodiscard]] bool complete() const { return layers_ == static_cast<int32_t>(seen_.size()); }
  [[nodiscard]] codec::Fidelity fidelity() const { return fidelity_; }  // the worst
  [[nodiscard]] std::vector<kv::DroppedTokens>& dropped() { return dropped_; }

 private:
  std::vector<bool> seen_;
  int32_t layers_ = 0;
  codec::Fidelity fidelity_ = codec::Fidelity::kExact;
  std::vector<kv::DroppedTokens> dropped_;
};

}  // namespace kvik::connector
