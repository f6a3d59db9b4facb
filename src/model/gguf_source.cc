// SPDX-License-Identifier: Apache-2.0
// GGUF as a ModelSource. A split set is several GGUF files: the first holds the metadata, all
// hold tensors; "split.no" and "split.count" say which part a file is.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>

#include "model/model_source.h"
#include "model/printable.h"

namespace kvik::model {
namespace {

constexpr int64_t kMaxSplits = 1000;

// Tokens that end a turn or a text in the published models. Files often name only one of them in
// their metadata.
constexpr std::string_view kEndTokens[] = {"<|im_end|>", "<|endoftext|>", "<|eot_id|>",
                                           "<|end_of_text|>", "<|eom_id|>"};
constexpr int64_t kControlToken = 3;  // of tokenizer.ggml.token_type

struct GgufSet {
  std::vector<GgufFile> files;  // the first holds the metadata
  std::vector<MappedFile> mappings;
};

Result<std::string> SplitName(const std::string& first, int64_t number, int64_t count) {
  char suffix[40];
  std::snprintf(suffix, sizeof(suffix), "-00001-of-%05d.gguf", static_cast<int>(count));
  const size_t length = std::strlen(suffix);
  if (first.size() < length || first.compare(first.size() - length, length, suffix) != 0) {
    return Err(ErrorCode::kInvalidInput,
               "%s: metadata 'split.count' says %d parts, so the name must end in %s",
               first.c_str(), static_cast<int>(count), suffix);
  }
  std::snprintf(suffix, sizeof(suffix), "-%05d-of-%05d.gguf", static_cast<int>(number),
                static_cast<int>(count));
  return first.substr(0, first.size() - length) + suffix;
}

Result<GgufSet> OpenSet(const std::string& path) {
  GgufSet set;
  KVIK_ASSIGN(MappedFile mapping, MappedFile::Open(path));
  KVIK_ASSIGN(GgufFile file, GgufFile::Parse(path, mapping.bytes()));
  set.mappings.push_back(std::move(mapping));
  set.files.push_back(std::move(file));
  const GgufFile first = set.files[0];
  KVIK_ASSIGN(const auto count_or, first.Int("split.count", 0, kMaxSplits));
  KVIK_ASSIGN(const auto number_or, first.Int("split.no", 0, kMaxSplits));
  const int64_t count = std::max<int64_t>(count_or.value_or(1), 1);
  if (number_or.value_or(0) != 0) {
    return first.Complain(ErrorCode::kInvalidInput,
                          "metadata 'split.no': this is part " + std::to_string(*number_or + 1) +
                              " of a split model; name its first part (-00001-of-...)");
  }
  for (int64_t i = 1; i < count; ++i) {
    KVIK_ASSIGN(const std::string part_path, SplitName(path, i + 1, count));
    KVIK_ASSIGN(MappedFile part_mapping, MappedFile::Open(part_path));
    KVIK_ASSIGN(GgufFile part, GgufFile::Parse(part_path, part_mapping.bytes()));
    KVIK_ASSIGN(const auto part_number, part.Int("split.no", 0, kMaxSplits));
    KVIK_ASSIGN(const auto part_count, part.Int("split.count", 0, kMaxSplits));
    if (part_number != i || part_count != count) {
      return part.Complain(ErrorCode::kCorrupt,
                           "metadata 'split.no': is not part " + std::to_string(i + 1) + " of " +
                               std::to_string(count) + "; fetch all parts of one release");
    }
    set.mappings.push_back(std::move(part_mapping));
    set.files.push_back(std::move(part));
  }
  KVIK_ASSIGN(const auto total,
              first.Int("split.tensors.count", 0, std::numeric_limits<int64_t>::max()));
  int64_t found = 0;
  for (const GgufFile& part : set.files) {
    found += static_cast<int64_t>(part.tensors().size());
  }
  if (total && count > 1 && *total != found) {
    return first.Complain(ErrorCode::kCorrupt,
                          "metadata 'split.tensors.count': " + std::to_string(*total) +
                              " tensors, but the parts hold " + std::to_string(found));
  }
  return set;
}

// Reads "<architecture>.<name>".
class ArchitectureFields {
 public:
  ArchitectureFields(const GgufFile& file, std::string architecture)
      : file_(file), architecture_(std::move(architecture)) {}

  [[nodiscard]] std::string Key(const char* name) const { return architecture_ + "." + name; }

  [[nodiscard]] Result<int32_t> Required(const char* name, int64_t max) const {
    KVIK_ASSIGN(const auto value, file_.Int(Key(name), 0, max));
    if (!value) {
      return file_.Complain(ErrorCode::kCorrupt,
                            "metadata '" + Key(name) + "': is missing; the file is incomplete");
    }
    return static_cast<int32_t>(*value);
  }
  [[nodiscard]] Result<int32_t> Optional(const char* name, int64_t max, int32_t otherwise) const {
    KVIK_ASSIGN(const auto value, file_.Int(Key(name), 0, max));
    return static_cast<int32_t>(value.value_or(otherwise));
  }
  [[nodiscard]] Result<double> Float(const char* name, double otherwise) const {
    KVIK_ASSIGN(const auto value, file_.Float(Key(name)));
    return value.value_or(otherwise);
  }

 private:
  const GgufFile& file_;
  std::string architecture_;
};

// Some converters write per-layer lists even when all layers agree.
Result<int32_t> KvHeads(const GgufFile& file, const ArchitectureFields& fields, int32_t otherwise) {
  const std::string key = fields.Key("attention.head_count_kv");
  const Result<std::vector<int64_t>> list = file.Ints(key);
  if (!list) {  // not a list: a number
    return fields.Optional("attention.head_count_kv", 1 << 20, otherwise);
  }
  if (list->empty()) {
    return otherwise;
  }
  for (const int64_t heads : *list) {
    if (heads != list->front() || heads < 0 || heads > (1 << 20)) {
      return file.Complain(
          ErrorCode::kUnsupported,
          "metadata '" + key + "': layers with different head counts are not supported");
    }
  }
  return static_cast<int32_t>(list->front());
}

Result<RopeConfig> ReadRope(const GgufFile& file, const ArchitectureFields& fields,
                            const ModelConfig& config) {
  RopeConfig rope;
  KVIK_ASSIGN(rope.theta, fields.Float("rope.freq_base", 10000.0));
  KVIK_ASSIGN(const int32_t dims,
              fields.Optional("rope.dimension_count", 1 << 20, config.head_dim));
  if (dims != config.head_dim) {
    return file.Complain(ErrorCode::kUnsupported,
                         "metadata '" + fields.Key("rope.dimension_count") + "': rotating " +
                             std::to_string(dims) + " of " + std::to_string(config.head_dim) +
                             " dimensions is not supported");
  }
  KVIK_ASSIGN(const auto type_or, file.String(fields.Key("rope.scaling.type")));
  const std::string_view type = type_or.value_or("none");
  KVIK_ASSIGN(rope.factor, fields.Float("rope.scaling.factor", 1.0));
  KVIK_ASSIGN(rope.original_context_tokens,
              fields.Optional("rope.scaling.original_context_length", 1 << 28, 0));
  if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
  } else if (type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    if (rope.original_context_tokens == 0) {
      rope.original_context_tokens = config.max_context_tokens;
    }
    // The file's factor multiplies the usual 0.1 ln(factor) + 1.
    KVIK_ASSIGN(const double multiplier, fields.Float("rope.scaling.attn_factor", 1.0));
    const double usual = rope.factor > 1 ? 0.1 * std::log(rope.factor) + 1 : 1.0;
    rope.attention_factor = multiplier * usual;
    KVIK_ASSIGN(rope.beta_fast, fields.Float("rope.scaling.yarn_beta_fast", 32.0));
    KVIK_ASSIGN(rope.beta_slow, fields.Float("rope.scaling.yarn_beta_slow", 1.0));
  } else if (type == "none") {
    // Files of 2023 scaled linearly without naming a type.
    KVIK_ASSIGN(const double legacy, fields.Float("rope.scale_linear", 1.0));
    rope.factor = legacy;
    rope.scaling = legacy != 1.0 ? RopeScaling::kLinear : RopeScaling::kNone;
  } else {
    return file.Complain(ErrorCode::kUnsupported, "metadata '" + fields.Key("rope.scaling.type") +
                                                      "': '" + Printable(type) +
                                                      "' is not supported (none, linear, yarn)");
  }
  return rope;
}

Result<std::vector<TokenId>> ReadEosTokens(const GgufFile& file, int32_t vocab_size) {
  std::vector<TokenId> tokens;
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    KVIK_ASSIGN(const auto id, file.Int(key, 0, vocab_size - 1));
    if (id) {
      tokens.push_back(static_cast<TokenId>(*id));
    }
  }
  KVIK_ASSIGN(const auto texts, file.Strings("tokenizer.ggml.tokens"));
  KVIK_ASSIGN(const auto types, file.Ints("tokenizer.ggml.token_type"));
  if (texts.size() > static_cast<size_t>(vocab_size)) {
    return file.Complain(ErrorCode::kCorrupt,
                         "metadata 'tokenizer.ggml.tokens': " + std::to_string(texts.size()) +
                             " tokens, but the embedding table has " + std::to_string(vocab_size) +
                             " rows; the file is damaged");
  }
  for (size_t i = 0; i < std::min(texts.size(), types.size()); ++i) {
    if (types[i] == kControlToken &&
        std::ranges::find(kEndTokens, texts[i]) != std::end(kEndTokens)) {
      tokens.push_back(static_cast<TokenId>(i));
    }
  }
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

using Weights = std::map<std::string, WeightTensor>;

Result<ModelConfig> ReadConfig(const GgufFile& file, const Weights& weights) {
  ModelConfig config;
  KVIK_ASSIGN(const auto architecture, file.String("general.architecture"));
  if (!architecture) {
    return file.Complain(ErrorCode::kCorrupt,
                         "metadata 'general.architecture': is missing; this is not a model file");
  }
  config.architecture = std::string(*architecture);
  if (*architecture != "llama" && *architecture != "qwen2" && *architecture != "qwen3") {
    return file.Complain(ErrorCode::kUnsupported,
                         "metadata 'general.architecture': '" + Printable(*architecture) +
                             "' is not supported (llama, qwen2, qwen3; mistral and smollm2 are "
                             "'llama' in GGUF)");
  }
  KVIK_ASSIGN(const auto name, file.String("general.name"));
  config.name = std::string(name.value_or(""));
  const ArchitectureFields fields(file, config.architecture);
  KVIK_ASSIGN(const int32_t experts, fields.Optional("expert_count", 1 << 20, 0));
  if (experts > 0) {
    return file.Complain(ErrorCode::kUnsupported, "metadata '" + fields.Key("expert_count") +
                                                      "': mixtures of experts are not supported");
  }
  KVIK_ASSIGN(config.num_layers, fields.Required("block_count", 1 << 20));
  KVIK_ASSIGN(config.max_context_tokens, fields.Required("context_length", 1 << 28));
  KVIK_ASSIGN(config.hidden_size, fields.Required("embedding_length", 1 << 20));
  KVIK_ASSIGN(config.intermediate_size, fields.Required("feed_forward_length", 1 << 24));
  KVIK_ASSIGN(config.num_heads, fields.Required("attention.head_count", 1 << 20));
  if (config.num_heads == 0) {
    return file.Complain(ErrorCode::kCorrupt,
                         "metadata '" + fields.Key("attention.head_count") + "': is 0");
  }
  KVIK_ASSIGN(config.num_kv_heads, KvHeads(file, fields, config.num_heads));
  KVIK_ASSIGN(config.head_dim, fields.Optional("attention.key_length", 1 << 20,
                                               config.hidden_size / config.num_heads));
  KVIK_ASSIGN(const int32_t value_dim,
              fields.Optional("attention.value_length", 1 << 20, config.head_dim));
  if (value_dim != config.head_dim) {
    return file.Complain(ErrorCode::kUnsupported,
                         "metadata '" + fields.Key("attention.value_length") +
                             "': differs from key_length, which is not supported");
  }
  KVIK_ASSIGN(const double eps, fields.Float("attention.layer_norm_rms_epsilon", 1e-5));
  config.rms_norm_eps = static_cast<float>(eps);
  KVIK_ASSIGN(config.sliding_window_tokens,
              fields.Optional("attention.sliding_window", 1 << 28, 0));

  const auto embedding = weights.find("token_embd.weight");
  if (embedding == weights.end()) {
    return file.Complain(ErrorCode::kCorrupt,
                         "tensor 'token_embd.weight' is missing; the model is incomplete, fetch "
                         "it again");
  }
  config.vocab_size =
      static_cast<int32_t>(std::min<int64_t>(embedding->second.rows, (1 << 24) + 1));
  config.tied_embeddings = !weights.contains("output.weight");
  config.qkv_bias = weights.contains("blk.0.attn_q.bias");
  config.output_bias = weights.contains("blk.0.attn_output.bias");
  config.qk_norm = weights.contains("blk.0.attn_q_norm.weight");
  KVIK_ASSIGN(const auto bos, file.Int("tokenizer.ggml.bos_token_id", 0, config.vocab_size - 1));
  config.bos_token = static_cast<TokenId>(bos.value_or(-1));
  KVIK_ASSIGN(config.eos_tokens, ReadEosTokens(file, config.vocab_size));
  KVIK_ASSIGN(config.rope, ReadRope(file, fields, config));
  return config;
}

Result<Weights> CollectWeights(const GgufSet& set) {
  Weights weights;
  for (const GgufFile& file : set.files) {
    for (const GgufTensor& tensor : file.tensors()) {
      WeightTensor weight;
      weight.type = tensor.type;
      weight.rows = static_cast<int64_t>(tensor.rows());
      weight.cols = static_cast<int64_t>(tensor.cols());
      weight.data = tensor.data;
      if (!weights.emplace(tensor.name, weight).second) {
        return file.Complain(ErrorCode::kCorrupt, "tensor '" + Printable(tensor.name) +
                                                      "' is also in another part of the set");
      }
    }
  }
  return weights;
}

// Llama-3 files carry the divisors of the rotary frequencies as a tensor.
Result<void> TakeRopeDivisors(const GgufFile& file, Weights& weights, RopeConfig& rope) {
  const auto it = weights.find("rope_freqs.weight");
  if (it == weights.end()) {
    return {};
  }
  const WeightTensor& weight = it->second;
  if (weight.type != GgmlType::kF32 || weight.cols > 4096 || weight.rows != 1) {
    return file.Complain(ErrorCode::kCorrupt,
                         "tensor 'rope_freqs.weight' is not a short F32 vector; the file is "
                         "damaged");
  }
  rope.frequency_divisors.resize(static_cast<size_t>(weight.cols));
  std::memcpy(rope.frequency_divisors.data(), weight.data.data(), weight.data.size());
  weights.erase(it);
  return {};
}

Result<std::unique_ptr<ModelSource>> CreateSource(const std::string& path, GgufSet set) {
  const GgufFile& file = set.files[0];
  ModelSource::Parts parts;
  parts.path = path;
  parts.container = "GGUF v" + std::to_string(file.version());
  if (set.files.size() > 1) {
    parts.container += " in " + std::to_string(set.files.size()) + " parts";
  }
  KVIK_ASSIGN(parts.weights, CollectWeights(set));
  KVIK_ASSIGN(parts.config, ReadConfig(file, parts.weights));
  KVIK_TRY(TakeRopeDivisors(file, parts.weights, parts.config.rope));
  if (parts.config.architecture == "llama") {
    // GGUF's llama stores rotary pairs side by side; qwen stores them half a head apart.
    for (auto& [name, weight] : parts.weights) {
      for (const char* kind :
           {".attn_q.weight", ".attn_k.weight", ".attn_q.bias", ".attn_k.bias"}) {
        if (name.ends_with(kind)) {
          weight.interleaved_head_dim = parts.config.head_dim;
        }
      }
    }
  }
  KVIK_ASSIGN(const auto chat_template, file.String("tokenizer.chat_template"));
  parts.chat_template = std::string(chat_template.value_or(""));
  for (const std::string_view key : file.Keys()) {
    parts.metadata.emplace_back(std::string(key), file.Describe(key));
  }
  parts.gguf = file;
  parts.files = std::move(set.mappings);
  return ModelSource::Create(std::move(parts));
}

}  // namespace

Result<std::unique_ptr<ModelSource>> OpenGguf(const std::string& path) {
  KVIK_ASSIGN(GgufSet set, OpenSet(path));
  return CreateSource(path, std::move(set));
}

Result<std::unique_ptr<ModelSource>> ParseGguf(const std::string& path,
                                               std::span<const std::byte> bytes) {
  GgufSet set;
  KVIK_ASSIGN(GgufFile file, GgufFile::Parse(path, bytes));
  set.files.push_back(std::move(file));
  return CreateSource(path, std::move(set));
}

}  // namespace kvik::model
