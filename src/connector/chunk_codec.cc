// SPDX-License-Identifier: Apache-2.0
#include "connector/chunk_codec.h"

#include <algorithm>

#include "base/check.h"
#include "codec/pages.h"

namespace kvik::connector {
namespace {

// Whatever a pipeline makes of a layer, it is stored as it is when it would become larger; what
// comes on top are headers, escapes and side information.
constexpr size_t SlackOf(size_t raw_bytes) { return raw_bytes / 4 + (size_t{16} << 10); }

size_t HeadStride(const ChunkPages& pages) {
  return static_cast<size_t>(pages.num_tokens()) * static_cast<size_t>(pages.geometry->head_dim);
}

// Room for one layer's keys and values.
void Prepare(const ChunkPages& pages, CodecScratch& scratch) {
  const size_t values = HeadStride(pages) * static_cast<size_t>(pages.geometry->num_kv_heads);
  if (scratch.keys.size() < values) {
    scratch.keys.resize(values);
    scratch.values.resize(values);
  }
}

// Dropped ranges, cut to the blocks that are wanted.
void AppendWanted(const ChunkPages& pages, int32_t layer, const codec::DroppedRange& dropped,
                  std::vector<kv::DroppedTokens>& out) {
  const int32_t block_tokens = pages.geometry->block_size_tokens;
  for (int32_t at = dropped.first_token; at < dropped.end_token;) {
    const int32_t block = at / block_tokens;
    const int32_t end = std::min(dropped.end_token, (block + 1) * block_tokens);
    const BlockId id = pages.blocks[static_cast<size_t>(block - pages.first_block)];
    if (id != kNoBlock) {
      const bool continues = !out.empty() && out.back().layer == layer &&
                             out.back().kv_head == dropped.kv_head && out.back().end_token == at;
      if (continues) {
        out.back().end_token = end;
      } else {
        out.push_back({layer, dropped.kv_head, at, end});
      }
    }
    at = end;
  }
}

}  // namespace

Result<void> CheckGeometry(const kv::KvGeometry& geometry, const codec::ModelFacts& model) {
  if (geometry.dtype != kv::KvDtype::kBf16) {
    return Err(ErrorCode::kInvalidInput,
               "KV moves as bf16, the cache holds float32: use --kv-cache-dtype bf16");
  }
  if (geometry.num_layers != model.num_layers || geometry.num_kv_heads != model.num_kv_heads ||
      geometry.head_dim != model.head_dim) {
    return Err(
        ErrorCode::kInvalidInput,
        "the cache has %d layers, %d kv heads of %d channels, the codec's model %d, %d of %d",
        geometry.num_layers, geometry.num_kv_heads, geometry.head_dim, model.num_layers,
        model.num_kv_heads, model.head_dim);
  }
  return {};
}

Result<void> EncodeLayer(const codec::FrameCodec& codec, const ChunkPages& pages, int32_t layer,
                         CodecScratch& scratch, std::vector<std::byte>& out) {
  Prepare(pages, scratch);
  const size_t stride = HeadStride(pages);
  const codec::TokenSpan tokens{pages.blocks, 0, pages.num_tokens()};
  codec::ReadRows(*pages.geometry, pages.arena, tokens, layer, kv::KvPart::kKey, stride,
                  scratch.keys.data());
  codec::ReadRows(*pages.geometry, pages.arena, tokens, layer, kv::KvPart::kValue, stride,
                  scratch.values.data());
  codec::KvRows rows;
  rows.layer = layer;
  rows.first_token = pages.first_token();
  rows.num_tokens = pages.num_tokens();
  // The chunk's own end, not the prompt's: equal KV must give equal objects.
  rows.prompt_tokens = rows.first_token + rows.num_tokens;
  rows.head_stride = stride;
  rows.keys = scratch.keys.data();
  rows.values = scratch.values.data();
  KVIK_TRY(codec.Encode(rows, codec::FrameParts::kBoth, scratch.workspace, out));
  return {};
}

Result<std::vector<std::byte>> EncodeChunk(const codec::FrameCodec& codec, const ObjectHead& head,
                                           const ChunkPages& pages, CodecScratch& scratch) {
  KVIK_CHECK(head.key.profile_hash == codec.profile_hash() &&
             head.blocks.size() == pages.blocks.size());
  std::vector<std::byte> stream;
  AppendHead(head, stream);
  codec::StreamWriter writer(codec, stream);
  std::vector<std::byte> frame;
  for (int32_t layer = 0; layer < pages.geometry->num_layers; ++layer) {
    frame.clear();
    KVIK_TRY(EncodeLayer(codec, pages, layer, scratch, frame));
    writer.AddEncoded(frame);
  }
  writer.Finish();
  return stream;
}

size_t MaxFrameBytes(const ChunkPages& pages) {
  const size_t raw = pages.raw_bytes() / static_cast<size_t>(pages.geometry->num_layers);
  return raw + SlackOf(raw);
}

size_t MaxObjectBytes(const ChunkPages& pages) {
  return HeadBytes(pages.blocks.size()) +
         MaxFrameBytes(pages) * static_cast<size_t>(pages.geometry->num_layers) +
         (size_t{64} << 10);
}

Result<DecodedLayer> DecodeLayer(const codec::FrameCodec& codec, std::span<const std::byte> frame,
                                 const ChunkPages& pages, CodecScratch& scratch) {
  // Before anything is decoded: is this the frame that was asked for? Its CRC is checked here, too.
  KVIK_ASSIGN(const codec::FrameHeader header, codec::ReadFrameHeader(frame));
  const kv::KvGeometry& geometry = *pages.geometry;
  if (header.frame_bytes() != frame.size()) {
    return Err(ErrorCode::kCorrupt, "a frame of %zu bytes in a place of %zu", header.frame_bytes(),
               frame.size());
  }
  if (header.model_fingerprint != codec.model().fingerprint ||
      header.profile_hash != codec.profile_hash()) {
    return Err(ErrorCode::kInvalidInput,
               "a frame of model %016llx and profile %016llx, asked for were %016llx and %016llx",
               static_cast<unsigned long long>(header.model_fingerprint),
               static_cast<unsigned long long>(header.profile_hash),
               static_cast<unsigned long long>(codec.model().fingerprint),
               static_cast<unsigned long long>(codec.profile_hash()));
  }
  if (header.layer < 0 || header.layer >= geometry.num_layers) {
    return Err(ErrorCode::kCorrupt, "a frame of layer %d of %d", header.layer, geometry.num_layers);
  }
  if (header.first_token != pages.first_token() || header.num_tokens != pages.num_tokens()) {
    return Err(ErrorCode::kCorrupt, "a frame of tokens [%d, +%d), asked for were [%d, +%d)",
               header.first_token, header.num_tokens, pages.first_token(), pages.num_tokens());
  }
  if (header.parts != codec::FrameParts::kBoth || header.first_head != 0 ||
      header.num_heads != geometry.num_kv_heads || header.head_dim != geometry.head_dim) {
    return Err(ErrorCode::kCorrupt, "a frame that does not hold keys and values of all %d heads",
               geometry.num_kv_heads);
  }
  if (header.fidelity != codec::Fidelity::kExact && !codec.lossy()) {
    return Err(ErrorCode::kCorrupt, "an approximation under a lossless profile");
  }

  Prepare(pages, scratch);
  const size_t stride = HeadStride(pages);
  codec::KvRowsOut rows;
  rows.num_tokens = pages.num_tokens();
  rows.num_heads = geometry.num_kv_heads;
  rows.head_stride = stride;
  rows.keys = scratch.keys.data();
  rows.values = scratch.values.data();
  KVIK_ASSIGN(const codec::DecodedFrame decoded, codec.Decode(frame, scratch.workspace, rows));

  // The wanted blocks, run by run.
  const int32_t block_tokens = geometry.block_size_tokens;
  const auto num_blocks = static_cast<int32_t>(pages.blocks.size());
  for (int32_t begin = 0; begin < num_blocks;) {
    if (pages.blocks[static_cast<size_t>(begin)] == kNoBlock) {
      ++begin;
      continue;
    }
    int32_t end = begin + 1;
    while (end < num_blocks && pages.blocks[static_cast<size_t>(end)] != kNoBlock) {
      ++end;
    }
    const codec::TokenSpan run{pages.blocks, begin * block_tokens, (end - begin) * block_tokens};
    const size_t offset = static_cast<size_t>(begin) * static_cast<size_t>(block_tokens) *
                          static_cast<size_t>(geometry.head_dim);
    codec::WriteRows(geometry, pages.arena, run, header.layer, kv::KvPart::kKey, stride,
                     scratch.keys.data() + offset);
    codec::WriteRows(geometry, pages.arena, run, header.layer, kv::KvPart::kValue, stride,
                     scratch.values.data() + offset);
    begin = end;
  }

  DecodedLayer layer;
  layer.layer = header.layer;
  layer.fidelity = decoded.header.fidelity;
  for (const codec::DroppedRange& dropped : decoded.dropped) {
    AppendWanted(pages, header.layer, dropped, layer.dropped);
  }
  return layer;
}

Result<void> LayerTally::Add(DecodedLayer layer) {
  if (seen_[static_cast<size_t>(layer.layer)]) {
    return Err(ErrorCode::kCorrupt, "layer %d came twice", layer.layer);
  }
  seen_[static_cast<size_t>(layer.layer)] = true;
  ++layers_;
  fidelity_ = std::max(fidelity_, layer.fidelity);
  dropped_.insert(dropped_.end(), layer.dropped.begin(), layer.dropped.end());
  return {};
}

}  // namespace kvik::connector
