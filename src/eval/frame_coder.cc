// SPDX-License-Identifier: Apache-2.0
#include "eval/frame_coder.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <utility>

#include "base/check.h"

namespace kvik::eval {

FrameCoder::FrameCoder(const codec::FrameCodec& codec, int32_t frame_tokens, int threads)
    : codec_(codec), frame_tokens_(frame_tokens), scratch_(static_cast<size_t>(threads)) {
  KVIK_CHECK(frame_tokens >= 1 && frame_tokens <= codec::kMaxFrameTokens);
}

std::string FrameCoder::name() const { return codec_.pipeline().ToString(); }

std::string FrameCoder::identity() const {
  char text[96];
  std::snprintf(text, sizeof text, " frames v%d of %d tokens, profile %016" PRIx64,
                int{codec::kFrameVersion}, frame_tokens_, codec_.profile_hash());
  return name() + text;
}

Result<CodedSize> FrameCoder::RoundTrip(const CodedRows& rows, int thread) {
  Scratch& scratch = scratch_[static_cast<size_t>(thread)];
  const auto head_dim = static_cast<size_t>(codec_.model().head_dim);
  const size_t head_stride = static_cast<size_t>(rows.num_tokens) * head_dim;
  scratch.keys.resize(rows.keys->size());
  scratch.values.resize(rows.values->size());
  CodedSize size;
  for (int32_t first = 0; first < rows.num_tokens; first += frame_tokens_) {
    const size_t skip = static_cast<size_t>(first) * head_dim;
    const codec::KvRows input{.layer = rows.layer,
                              .first_token = rows.first_pos + first,
                              .num_tokens = std::min(frame_tokens_, rows.num_tokens - first),
                              .prompt_tokens = rows.prompt_tokens,
                              .head_stride = head_stride,
                              .keys = rows.keys->data() + skip,
                              .values = rows.values->data() + skip};
    scratch.bytes.clear();
    KVIK_ASSIGN(const size_t written,
                codec_.Encode(input, codec::FrameParts::kBoth, scratch.workspace, scratch.bytes));
    KVIK_ASSIGN(const codec::DecodedFrame decoded,
                codec_.Decode(scratch.bytes, scratch.workspace,
                              {.num_tokens = input.num_tokens,
                               .num_heads = codec_.model().num_kv_heads,
                               .head_stride = head_stride,
                               .keys = scratch.keys.data() + skip,
                               .values = scratch.values.data() + skip}));
    size.bytes += written;
    for (const codec::DroppedRange& dropped : decoded.dropped) {
      size.dropped.push_back({dropped.kv_head, dropped.first_token, dropped.end_token});
    }
  }
  rows.keys->swap(scratch.keys);
  rows.values->swap(scratch.values);
  return size;
}

}  // namespace kvik::eval
