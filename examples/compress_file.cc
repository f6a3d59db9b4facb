// SPDX-License-Identifier: Apache-2.0
// Compresses a file of KV, reads it back and says what it cost. The whole use of the codec library:
//
//   1. describe the model                      codec/model_facts.h
//   2. name a pipeline                         codec/pipeline.h, codec/presets.h
//   3. make a codec of both                    codec/frame.h
//   4. one frame for each layer and run of tokens, alone or as a stream: codec/frame_stream.h
//
//   compress_file kivi-2 kv.bf16 kv.kvs 30 3 64
//
// kv.bf16 holds bf16 values [layers][2: keys, values][kv_heads][tokens][head_dim];
// compress_file_test.sh makes one. Calibrated pipelines need a profile library on top
// (codec/profile_library.h): its side information is FrameCodec::Create's third argument.
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/isa.h"
#include "codec/frame_stream.h"
#include "codec/presets.h"

namespace {

using namespace kvik;  // NOLINT(google-build-using-namespace): an example

int Fail(const std::string& message) {
  std::fprintf(stderr, "compress_file: %s\n", message.c_str());
  return 1;
}

int32_t Number(const char* text) {
  int32_t value = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  return error == std::errc() && *end == '\0' ? value : -1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    return Fail("usage: compress_file PIPELINE IN OUT LAYERS KV_HEADS HEAD_DIM");
  }

  // 1. The model: here only its shape; stages that undo rotary positions need their frequencies,
  // too. Frames of another fingerprint are refused.
  codec::ModelFacts model;
  model.name = "example";
  model.fingerprint = 1;
  model.num_layers = Number(argv[4]);
  model.num_kv_heads = Number(argv[5]);
  model.head_dim = Number(argv[6]);
  if (model.num_layers < 1 || model.num_kv_heads < 1 || model.head_dim < 1) {
    return Fail("LAYERS, KV_HEADS and HEAD_DIM are positive numbers");
  }

  std::ifstream in(argv[2], std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const size_t token_bytes = static_cast<size_t>(model.num_layers) * 2 *
                             static_cast<size_t>(model.num_kv_heads) *
                             static_cast<size_t>(model.head_dim) * sizeof(Bf16);
  if (bytes.empty() || bytes.size() % token_bytes != 0) {
    return Fail(std::string(argv[2]) + " does not hold whole tokens of " +
                std::to_string(token_bytes) + " bytes");
  }
  const auto tokens = static_cast<int32_t>(bytes.size() / token_bytes);
  std::vector<Bf16> kv(bytes.size() / sizeof(Bf16));
  std::memcpy(kv.data(), bytes.data(), bytes.size());

  // 2. The pipeline, by a preset's name or in full: "hadamard -> uniform(levels=16) -> rans".
  const auto pipeline = codec::ParsePipelineOrPreset(argv[1]);
  if (!pipeline) {
    return Fail(pipeline.error().message);
  }

  // 3. The codec: immutable, shared by all threads. Each thread brings a workspace.
  const auto isa = SelectIsa();
  if (!isa) {
    return Fail(isa.error().message);
  }
  const auto made = codec::FrameCodec::Create(*pipeline, model, nullptr, *isa);
  if (!made) {
    return Fail(made.error().message);
  }
  const codec::FrameCodec& frames = **made;
  codec::Workspace workspace;

  // 4. A frame a layer, as a stream.
  const size_t head_stride = static_cast<size_t>(tokens) * static_cast<size_t>(model.head_dim);
  const size_t part_values = head_stride * static_cast<size_t>(model.num_kv_heads);
  std::vector<std::byte> compressed;
  codec::StreamWriter writer(frames, compressed);
  for (int32_t layer = 0; layer < model.num_layers; ++layer) {
    codec::KvRows rows;
    rows.layer = layer;
    rows.num_tokens = tokens;
    rows.prompt_tokens = tokens;
    rows.head_stride = head_stride;
    rows.keys = kv.data() + static_cast<size_t>(layer) * 2 * part_values;
    rows.values = rows.keys + part_values;
    if (const auto size = writer.Add(rows, codec::FrameParts::kBoth, workspace); !size) {
      return Fail(size.error().message);
    }
  }
  writer.Finish();
  std::ofstream out(argv[3], std::ios::binary);
  out.write(reinterpret_cast<const char*>(compressed.data()),
            static_cast<std::streamsize>(compressed.size()));
  if (!out.flush()) {
    return Fail(std::string("cannot write ") + argv[3]);
  }

  // Back again, as a receiver would: feed what arrives, take whole frames.
  codec::StreamReader reader;
  reader.Feed(compressed);
  std::vector<Bf16> keys(part_values);
  std::vector<Bf16> values(part_values);
  double error = 0;
  double power = 0;
  size_t different = 0;
  for (;;) {
    const auto frame = reader.Next();
    if (!frame) {
      return Fail(frame.error().message);
    }
    if (!*frame) {
      break;
    }
    const auto decoded = frames.Decode(
        **frame, workspace, {tokens, model.num_kv_heads, head_stride, keys.data(), values.data()});
    if (!decoded) {
      return Fail(decoded.error().message);
    }
    const Bf16* const raw =
        kv.data() + static_cast<size_t>(decoded->header.layer) * 2 * part_values;
    for (size_t i = 0; i < 2 * part_values; ++i) {
      const Bf16 value = i < part_values ? keys[i] : values[i - part_values];
      const double difference = ToFloat(value) - ToFloat(raw[i]);
      different += value == raw[i] ? 0 : 1;
      error += difference * difference;
      power += static_cast<double>(ToFloat(raw[i])) * ToFloat(raw[i]);
    }
  }
  std::printf(
      "%s\n%d tokens: %zu -> %zu bytes, %.3f bits a value, %.2fx; %zu of %zu values differ, "
      "relative error %.4f\n",
      pipeline->ToString().c_str(), tokens, bytes.size(), compressed.size(),
      8.0 * static_cast<double>(compressed.size()) / static_cast<double>(kv.size()),
      static_cast<double>(bytes.size()) / static_cast<double>(compressed.size()), different,
      kv.size(), power > 0 ? std::sqrt(error / power) : 0.0);
  return reader.complete() ? 0 : Fail("the stream is cut");
}
