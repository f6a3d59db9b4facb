// SPDX-License-Identifier: Apache-2.0
// Any bf16 bits can be encoded by every preset that needs no calibration: all instruction sets
// write the same bytes, the frame decodes, exact pipelines give the same bits back, and others give
// a finite value for a finite one and the same bits for one that is not.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/isa.h"
#include "codec/frame.h"
#include "codec/presets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  using namespace kvik;         // NOLINT
  using namespace kvik::codec;  // NOLINT
  constexpr int32_t kHeads = 2;
  constexpr int32_t kDim = 16;
  if (size_bytes < 4 || size_bytes > 8192) {
    return 0;
  }
  std::vector<const Preset*> presets;
  for (const Preset& preset : AllPresets()) {
    if (!preset.calibrated) {
      presets.push_back(&preset);
    }
  }
  const Preset& preset = *presets[data[0] % presets.size()];
  const int32_t tokens = 1 + data[1] % 40;
  ModelFacts model;
  model.num_layers = 3;
  model.num_kv_heads = kHeads;
  model.head_dim = kDim;
  model.rope_frequencies.assign(kDim / 2, 0.1);
  const size_t stride = static_cast<size_t>(tokens) * kDim;
  std::vector<Bf16> rows(kHeads * stride);
  // Bytes of the input again and again.
  for (size_t i = 0; i < rows.size() * 2; ++i) {
    reinterpret_cast<uint8_t*>(rows.data())[i] = data[2 + i % (size_bytes - 2)];
  }
  KvRows input;
  input.layer = data[2] % 3;
  input.num_tokens = tokens;
  input.prompt_tokens = data[3] % 2 == 0 ? tokens : 0;
  input.head_stride = stride;
  input.keys = rows.data();
  input.values = rows.data();
  std::vector<std::byte> first;
  for (const Isa isa : SupportedIsas()) {
    const auto codec =
        FrameCodec::Create(*PipelineSpec::Parse(preset.pipeline), model, nullptr, isa);
    KVIK_CHECK(codec.has_value());
    Workspace workspace;
    std::vector<std::byte> frame;
    KVIK_CHECK((*codec)->Encode(input, FrameParts::kBoth, workspace, frame).has_value());
    if (first.empty()) {
      first = frame;
    }
    KVIK_CHECK(frame == first);
    std::vector<Bf16> keys(rows.size());
    std::vector<Bf16> values(rows.size());
    const auto decoded = (*codec)->Decode(
        frame, workspace, KvRowsOut{tokens, kHeads, stride, keys.data(), values.data()});
    KVIK_CHECK(decoded.has_value(), "%s", decoded.error().message.c_str());
    if (!(*codec)->lossy()) {
      KVIK_CHECK(keys == rows && values == rows);
      continue;
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      const bool finite = std::isfinite(ToFloat(rows[i]));
      KVIK_CHECK(finite ? std::isfinite(ToFloat(keys[i])) : keys[i] == rows[i]);
      KVIK_CHECK(finite ? std::isfinite(ToFloat(values[i])) : values[i] == rows[i]);
    }
  }
  return 0;
}
