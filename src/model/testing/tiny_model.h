// SPDX-License-Identifier: Apache-2.0
// model/testing/tiny_model.h: small random models as GGUF, so that tests of the engine, the server
// and the whole program need no download.
//
// A tiny model is complete: random weights in any supported format, a byte-level BPE tokenizer
// (all 256 bytes, a few merges, chat tokens) and a chat template. What it says is noise, but the
// same noise for the same options.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/gguf.h"

namespace kvik::model::testing {

struct TinyModelOptions {
  std::string architecture = "llama";  // or "qwen2", "qwen3"
  int32_t hidden_size = 64;            // a multiple of the format's block
  int32_t intermediate_size = 128;     // likewise
  int32_t num_layers = 2;
  int32_t num_heads = 2;
  int32_t num_kv_heads = 1;
  int32_t head_dim = 64;  // num_heads * head_dim: a multiple of the format's block
  int32_t max_context_tokens = 2048;
  int32_t sliding_window_tokens = 0;
  bool tied_embeddings = true;
  GgmlType format = GgmlType::kQ8_0;  // of all matrices
  uint64_t seed = 1;
  // Rope scaling as GGUF spells it: "", "linear" or "yarn"; with `rope_factor`.
  std::string rope_scaling = {};
  float rope_factor = 1.0F;
  std::vector<float> rope_divisors = {};  // [head_dim / 2]: the tensor rope_freqs.weight
};

// The file's bytes. The vocabulary has kTinyVocabSize tokens.
std::vector<std::byte> MakeTinyGguf(const TinyModelOptions& options);
// Writes them.
Result<void> WriteTinyGguf(const TinyModelOptions& options, const std::string& path);

// 256 bytes, 24 merged pieces, then <|endoftext|>, <|im_start|>, <|im_end|>; the last two ids end
// the vocabulary and <|im_end|> ends a generation.
constexpr int32_t kTinyVocabSize = 283;
constexpr int32_t kTinyEndOfText = 280;
constexpr int32_t kTinyImStart = 281;
constexpr int32_t kTinyImEnd = 282;

// Random blocks of `type` for `values` numbers (a multiple of the block) whose standard deviation
// is about `sigma`. Every bit pattern of the quantised part occurs.
std::vector<std::byte> RandomTensor(GgmlType type, size_t values, double sigma, uint64_t seed);

}  // namespace kvik::model::testing
