// SPDX-License-Identifier: Apache-2.0
// Quantised weights are made directly: random quants and block scales of the right size. That
// needs no quantiser and reaches every code of a format.
#include "model/testing/tiny_model.h"

#include <cmath>
#include <cstring>
#include <deque>
#include <numbers>
#include <span>
#include <string>
#include <utility>

#include "base/float16.h"
#include "base/rng.h"
#include "model/gguf_writer.h"
#include "model/output_file.h"

namespace kvik::model::testing {
namespace {

double Gaussian(Rng& rng) {
  const double u = 1.0 - rng.Uniform();  // (0, 1]
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * rng.Uniform());
}

template <typename T>
void Append(std::vector<std::byte>& out, T value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void AppendRandomBytes(std::vector<std::byte>& out, size_t count, Rng& rng) {
  for (size_t i = 0; i < count; ++i) {
    out.push_back(static_cast<std::byte>(rng.Below(256)));
  }
}

void AppendScale(std::vector<std::byte>& out, double scale, Rng& rng) {
  // Half to one and a half times the wanted scale.
  Append(out, ToF16(static_cast<float>(scale * (0.5 + rng.Uniform()))));
}

void AppendBlock(std::vector<std::byte>& out, GgmlType type, double sigma, Rng& rng) {
  switch (type) {
    case GgmlType::kF32:
      Append(out, static_cast<float>(sigma * Gaussian(rng)));
      return;
    case GgmlType::kF16:
      Append(out, ToF16(static_cast<float>(sigma * Gaussian(rng))));
      return;
    case GgmlType::kBf16:
      Append(out, ToBf16(static_cast<float>(sigma * Gaussian(rng))));
      return;
    case GgmlType::kQ8_0:
      AppendScale(out, sigma / 74, rng);
      AppendRandomBytes(out, 32, rng);
      return;
    case GgmlType::kQ4_0:
      AppendScale(out, sigma / 4.6, rng);
      AppendRandomBytes(out, 16, rng);
      return;
    case GgmlType::kQ4_1:
    case GgmlType::kQ5_1: {
      const bool five = type == GgmlType::kQ5_1;
      const double scale = sigma / (five ? 9.2 : 4.6) * (0.5 + rng.Uniform());
      Append(out, ToF16(static_cast<float>(scale)));
      Append(out, ToF16(static_cast<float>(-scale * (five ? 15.5 : 7.5))));
      AppendRandomBytes(out, five ? 20 : 16, rng);
      return;
    }
    case GgmlType::kQ5_0:
      AppendScale(out, sigma / 9.2, rng);
      AppendRandomBytes(out, 20, rng);
      return;
    case GgmlType::kQ4_K:
    case GgmlType::kQ5_K: {
      const bool five = type == GgmlType::kQ5_K;
      const double scale = sigma / (five ? 520 : 250) * (0.5 + rng.Uniform());
      Append(out, ToF16(static_cast<float>(scale)));
      Append(out, ToF16(static_cast<float>(scale * (five ? 15.5 : 7.5))));
      AppendRandomBytes(out, 12 + (five ? 160 : 128), rng);
      return;
    }
    case GgmlType::kQ6_K:
      AppendRandomBytes(out, 128 + 64 + 16, rng);
      AppendScale(out, sigma / 1370, rng);
      return;
  }
}

std::vector<std::byte> RandomNorm(size_t values, uint64_t seed) {
  Rng rng(seed);
  std::vector<std::byte> out;
  for (size_t i = 0; i < values; ++i) {
    Append(out, static_cast<float>(1.0 + 0.2 * Gaussian(rng)));
  }
  return out;
}

// GPT-2's printable stand-ins for the 256 bytes.
std::vector<std::string> ByteTokens() {
  std::vector<std::string> tokens(256);
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    const uint32_t code = printable ? byte : next++;
    if (code < 0x80) {
      tokens[byte] = std::string(1, static_cast<char>(code));
    } else {
      tokens[byte] = {static_cast<char>(0xC0 | (code >> 6)),
                      static_cast<char>(0x80 | (code & 0x3F))};
    }
  }
  return tokens;
}

void AddTokenizer(GgufWriter& writer) {
  std::vector<std::string> tokens = ByteTokens();
  const std::string space = tokens[' '];
  const std::pair<std::string, std::string> pairs[] = {
      {space, "t"}, {"h", "e"},   {space, "a"}, {"i", "n"},   {space + "t", "he"}, {"o", "n"},
      {"r", "e"},   {space, "s"}, {"e", "r"},   {space, "w"}, {"a", "t"},          {"n", "d"},
      {space, "o"}, {"i", "t"},   {"e", "s"},   {"o", "r"},   {"i", "s"},          {"e", "n"},
      {space, "c"}, {"o", "u"},   {space, "b"}, {space, "f"}, {"in", "g"},         {"e", "d"}};
  std::vector<std::string> merges;
  for (const auto& [left, right] : pairs) {
    std::string merge = left;
    merge += ' ';
    merge += right;
    merges.push_back(std::move(merge));
    tokens.push_back(left + right);
  }
  std::vector<int32_t> types(tokens.size(), 1);
  for (const char* special : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    tokens.emplace_back(special);
    types.push_back(3);
  }
  KVIK_CHECK(tokens.size() == static_cast<size_t>(kTinyVocabSize));
  writer.AddString("tokenizer.ggml.model", "gpt2");
  writer.AddString("tokenizer.ggml.pre", "gpt-2");
  writer.AddStrings("tokenizer.ggml.tokens", tokens);
  writer.AddInts("tokenizer.ggml.token_type", types);
  writer.AddStrings("tokenizer.ggml.merges", merges);
  writer.AddUint32("tokenizer.ggml.bos_token_id", kTinyEndOfText);
  writer.AddUint32("tokenizer.ggml.eos_token_id", kTinyImEnd);
  writer.AddBool("tokenizer.ggml.add_bos_token", false);
  writer.AddString("tokenizer.chat_template",
                   "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
                   "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
                   "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}");
}

void AddConfig(GgufWriter& writer, const TinyModelOptions& o) {
  const std::string prefix = o.architecture + ".";
  const auto u32 = [&](const char* key, int32_t value) {
    writer.AddUint32(prefix + key, static_cast<uint32_t>(value));
  };
  writer.AddString("general.architecture", o.architecture);
  writer.AddString("general.name", "tiny random " + o.architecture);
  u32("block_count", o.num_layers);
  u32("context_length", o.max_context_tokens);
  u32("embedding_length", o.hidden_size);
  u32("feed_forward_length", o.intermediate_size);
  u32("attention.head_count", o.num_heads);
  u32("attention.head_count_kv", o.num_kv_heads);
  u32("attention.key_length", o.head_dim);
  u32("attention.value_length", o.head_dim);
  u32("rope.dimension_count", o.head_dim);
  if (o.sliding_window_tokens > 0) {
    u32("attention.sliding_window", o.sliding_window_tokens);
  }
  writer.AddFloat32(prefix + "attention.layer_norm_rms_epsilon", 1e-5F);
  writer.AddFloat32(prefix + "rope.freq_base", 10000.0F);
  if (!o.rope_scaling.empty()) {
    writer.AddString(prefix + "rope.scaling.type", o.rope_scaling);
    writer.AddFloat32(prefix + "rope.scaling.factor", o.rope_factor);
    u32("rope.scaling.original_context_length", 256);
  }
}

// Collects tensors, whose bytes must stay in place until the file is serialised.
class TensorMaker {
 public:
  TensorMaker(GgufWriter& writer, const TinyModelOptions& options)
      : writer_(writer), options_(options) {}

  void Matrix(const std::string& name, int32_t rows, int32_t cols) {
    Add(name, options_.format, {static_cast<uint64_t>(cols), static_cast<uint64_t>(rows)},
        RandomTensor(options_.format, static_cast<size_t>(rows) * static_cast<size_t>(cols),
                     1.0 / std::sqrt(cols), NextSeed()));
  }
  void Norm(const std::string& name, int32_t size) {
    Add(name, GgmlType::kF32, {static_cast<uint64_t>(size)},
        RandomNorm(static_cast<size_t>(size), NextSeed()));
  }
  void Bias(const std::string& name, int32_t size) {
    Add(name, GgmlType::kF32, {static_cast<uint64_t>(size)},
        RandomTensor(GgmlType::kF32, static_cast<size_t>(size), 0.3, NextSeed()));
  }
  void Vector(const std::string& name, std::span<const float> values) {
    const auto bytes = std::as_bytes(values);
    Add(name, GgmlType::kF32, {values.size()}, {bytes.begin(), bytes.end()});
  }

 private:
  uint64_t NextSeed() { return options_.seed * 1000003 + ++count_; }
  void Add(const std::string& name, GgmlType type, std::vector<uint64_t> dims,
           std::vector<std::byte> bytes) {
    data_.push_back(std::move(bytes));
    writer_.AddTensor(name, type, std::move(dims), data_.back());
  }

  GgufWriter& writer_;
  const TinyModelOptions& options_;
  uint64_t count_ = 0;
  std::deque<std::vector<std::byte>> data_;
};

}  // namespace

std::vector<std::byte> RandomTensor(GgmlType type, size_t values, double sigma, uint64_t seed) {
  const size_t block = InfoOf(type).block_values;
  KVIK_CHECK(values % block == 0);
  Rng rng(seed);
  std::vector<std::byte> out;
  out.reserve(values / block * InfoOf(type).block_bytes);
  for (size_t i = 0; i < values / block; ++i) {
    AppendBlock(out, type, sigma, rng);
  }
  KVIK_CHECK(out.size() == values / block * InfoOf(type).block_bytes);
  return out;
}

std::vector<std::byte> MakeTinyGguf(const TinyModelOptions& o) {
  GgufWriter writer;
  AddConfig(writer, o);
  AddTokenizer(writer);
  TensorMaker make(writer, o);
  const int32_t q_size = o.num_heads * o.head_dim;
  const int32_t kv_size = o.num_kv_heads * o.head_dim;
  make.Matrix("token_embd.weight", kTinyVocabSize, o.hidden_size);
  for (int32_t layer = 0; layer < o.num_layers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    make.Norm(prefix + "attn_norm.weight", o.hidden_size);
    make.Matrix(prefix + "attn_q.weight", q_size, o.hidden_size);
    make.Matrix(prefix + "attn_k.weight", kv_size, o.hidden_size);
    make.Matrix(prefix + "attn_v.weight", kv_size, o.hidden_size);
    if (o.architecture == "qwen2") {
      make.Bias(prefix + "attn_q.bias", q_size);
      make.Bias(prefix + "attn_k.bias", kv_size);
      make.Bias(prefix + "attn_v.bias", kv_size);
    }
    if (o.architecture == "qwen3") {
      make.Norm(prefix + "attn_q_norm.weight", o.head_dim);
      make.Norm(prefix + "attn_k_norm.weight", o.head_dim);
    }
    make.Matrix(prefix + "attn_output.weight", o.hidden_size, q_size);
    make.Norm(prefix + "ffn_norm.weight", o.hidden_size);
    make.Matrix(prefix + "ffn_gate.weight", o.intermediate_size, o.hidden_size);
    make.Matrix(prefix + "ffn_up.weight", o.intermediate_size, o.hidden_size);
    make.Matrix(prefix + "ffn_down.weight", o.hidden_size, o.intermediate_size);
  }
  make.Norm("output_norm.weight", o.hidden_size);
  if (!o.tied_embeddings) {
    make.Matrix("output.weight", kTinyVocabSize, o.hidden_size);
  }
  if (!o.rope_divisors.empty()) {
    make.Vector("rope_freqs.weight", o.rope_divisors);
  }
  return writer.Serialize();
}

Result<void> WriteTinyGguf(const TinyModelOptions& options, const std::string& path) {
  KVIK_ASSIGN(OutputFile file, OutputFile::Create(path));
  KVIK_TRY(file.Write(MakeTinyGguf(options)));
  return file.Close();
}

}  // namespace kvik::model::testing
