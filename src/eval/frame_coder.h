// SPDX-License-Identifier: Apache-2.0
// eval/frame_coder.h: KV through frames of the codec, as two processes would exchange them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "codec/frame.h"
#include "eval/kv_coder.h"

namespace kvik::eval {

// One frame with keys and values of a layer for at most `frame_tokens` tokens. Every byte of every
// frame counts; what both sides have before (the profile) does not.
class FrameCoder final : public KvCoder {
 public:
  // Borrows the codec. `threads` may call RoundTrip at the same time. REQUIRES: frame_tokens in
  // [1, codec::kMaxFrameTokens].
  FrameCoder(const codec::FrameCodec& codec, int32_t frame_tokens, int threads);

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::string identity() const override;
  Result<CodedSize> RoundTrip(const CodedRows& rows, int thread) override;

 private:
  struct Scratch {
    codec::Workspace workspace;
    std::vector<std::byte> bytes;
    std::vector<Bf16> keys;
    std::vector<Bf16> values;
  };
  const codec::FrameCodec& codec_;
  int32_t frame_tokens_;
  std::vector<Scratch> scratch_;  // [threads]
};

}  // namespace kvik::eval
