// SPDX-License-Identifier: Apache-2.0
// Any bytes are a frame or an error, for every preset that needs no calibration. The header and the
// CRC are made valid, so that what is tried is the payload; all instruction sets agree on what it
// decodes to; and nothing is written outside the rows that were asked for.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/isa.h"
#include "codec/frame.h"
#include "codec/presets.h"

namespace kvik::codec {
namespace {

constexpr int32_t kHeads = 2;
constexpr int32_t kDim = 16;
constexpr size_t kGuard = 32;

ModelFacts Model() {
  ModelFacts model;
  model.name = "fuzzed";
  model.fingerprint = 1;
  model.num_layers = 3;
  model.num_kv_heads = kHeads;
  model.head_dim = kDim;
  model.rope_frequencies.assign(kDim / 2, 0.1);
  return model;
}

// [preset][isa]
const std::vector<std::vector<std::unique_ptr<FrameCodec>>>& Codecs() {
  static const auto* const kCodecs = [] {
    auto* codecs = new std::vector<std::vector<std::unique_ptr<FrameCodec>>>();
    for (const Preset& preset : AllPresets()) {
      if (preset.calibrated) {
        continue;
      }
      codecs->emplace_back();
      for (const Isa isa : SupportedIsas()) {
        auto codec =
            FrameCodec::Create(*PipelineSpec::Parse(preset.pipeline), Model(), nullptr, isa);
        KVIK_CHECK(codec.has_value(), "%s", codec.error().message.c_str());
        codecs->back().push_back(std::move(codec).value());
      }
    }
    return codecs;
  }();
  return *kCodecs;
}

struct Outcome {
  bool decoded = false;
  std::vector<Bf16> keys;
  std::vector<Bf16> values;
};

Outcome Decode(const FrameCodec& codec, std::span<const std::byte> frame, int32_t tokens) {
  const size_t stride = static_cast<size_t>(tokens) * kDim;
  Outcome outcome;
  outcome.keys.assign(kHeads * stride + kGuard, Bf16{0x1234});
  outcome.values = outcome.keys;
  KvRowsOut out;
  out.num_tokens = tokens;
  out.num_heads = kHeads;
  out.head_stride = stride;
  out.keys = outcome.keys.data();
  out.values = outcome.values.data();
  Workspace workspace;
  outcome.decoded = codec.Decode(frame, workspace, out).has_value();
  for (size_t i = 0; i < kGuard; ++i) {
    KVIK_CHECK(outcome.keys[kHeads * stride + i].bits == 0x1234);
    KVIK_CHECK(outcome.values[kHeads * stride + i].bits == 0x1234);
  }
  return outcome;
}

}  // namespace
}  // namespace kvik::codec

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  using namespace kvik;         // NOLINT
  using namespace kvik::codec;  // NOLINT
  if (size_bytes < 3 || size_bytes > 4096) {
    return 0;
  }
  const auto& codecs = Codecs()[data[0] % Codecs().size()];
  const int32_t tokens = 1 + data[1] % 40;
  // A whole frame of the fuzzer's own, or its payload behind a valid header.
  std::vector<std::byte> frame;
  const auto bytes = std::as_bytes(std::span(data + 3, size_bytes - 3));
  if ((data[2] & 1) != 0) {
    frame.assign(bytes.begin(), bytes.end());
  } else {
    const size_t stride = static_cast<size_t>(tokens) * kDim;
    const std::vector<Bf16> rows(kHeads * stride);
    KvRows input;
    input.layer = 1;
    input.num_tokens = tokens;
    input.prompt_tokens = tokens;
    input.head_stride = stride;
    input.keys = rows.data();
    input.values = rows.data();
    Workspace workspace;
    KVIK_CHECK(codecs[0]->Encode(input, FrameParts::kBoth, workspace, frame).has_value());
    frame.resize(kFrameHeaderBytes);
    frame.insert(frame.end(), bytes.begin(), bytes.end());
    const auto payload = static_cast<uint32_t>(bytes.size());
    std::memcpy(frame.data() + 28, &payload, sizeof(payload));
    const uint32_t crc = Crc32c(std::span(frame).subspan(8));
    std::memcpy(frame.data() + 4, &crc, sizeof(crc));
  }
  const Outcome first = Decode(*codecs[0], frame, tokens);
  for (size_t i = 1; i < codecs.size(); ++i) {
    const Outcome other = Decode(*codecs[i], frame, tokens);
    KVIK_CHECK(other.decoded == first.decoded);
    KVIK_CHECK(!first.decoded || (other.keys == first.keys && other.values == first.values));
  }
  return 0;
}
