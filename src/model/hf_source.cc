// SPDX-License-Identifier: Apache-2.0
// A Hugging Face folder as a ModelSource: config.json, generation_config.json, safetensors (one
// file or the shards of model.safetensors.index.json), tokenizer_config.json.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>

#include "model/json_file.h"
#include "model/model_source.h"
#include "model/printable.h"
#include "model/safetensors.h"

namespace kvik::model {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr size_t kMaxIndexBytes = 16 << 20;
constexpr size_t kMaxTokenizerConfigBytes = 8 << 20;
constexpr size_t kMaxTemplateBytes = 1 << 20;
constexpr size_t kMaxShards = 1000;

bool Exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

Result<std::string> ArchitectureOf(const JsonFields& json) {
  KVIK_ASSIGN(const auto type, json.String("model_type"));
  if (!type) {
    return json.Complain(ErrorCode::kCorrupt, "model_type", "is missing; this is not a model");
  }
  for (const char* known : {"llama", "mistral", "qwen2", "qwen3"}) {
    if (*type == known) {
      return *type;
    }
  }
  return json.Complain(ErrorCode::kUnsupported, "model_type",
                       "'" + Printable(*type) +
                           "' is not supported (llama, mistral, qwen2, qwen3; smollm2 is 'llama')");
}

// `json` is the scaling object; `config` is filled in but for its rope.
Result<void> ReadRopeScaling(const JsonFields& json, const ModelConfig& config, RopeConfig& rope) {
  KVIK_ASSIGN(const auto new_type, json.String("rope_type"));
  KVIK_ASSIGN(const auto old_type, json.String("type"));
  const std::string type = new_type ? *new_type : old_type.value_or("default");
  KVIK_ASSIGN(const auto factor, json.Float("factor"));
  rope.factor = factor.value_or(1.0);
  KVIK_ASSIGN(const auto original, json.Int("original_max_position_embeddings", 1, 1 << 28));
  rope.original_context_tokens = static_cast<int32_t>(original.value_or(config.max_context_tokens));
  if (type == "default") {
    rope.factor = 1.0;
    rope.original_context_tokens = 0;
    return {};
  }
  if (!factor) {
    return json.Complain(ErrorCode::kCorrupt, "factor", "is missing");
  }
  if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
    return {};
  }
  if (type == "llama3") {
    rope.scaling = RopeScaling::kLlama3;
    KVIK_ASSIGN(const auto low, json.Float("low_freq_factor"));
    KVIK_ASSIGN(const auto high, json.Float("high_freq_factor"));
    rope.low_freq_factor = low.value_or(1.0);
    rope.high_freq_factor = high.value_or(4.0);
    return {};
  }
  if (type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    KVIK_ASSIGN(const auto attention, json.Float("attention_factor"));
    KVIK_ASSIGN(const auto mscale, json.Float("mscale"));
    KVIK_ASSIGN(const auto mscale_all, json.Float("mscale_all_dim"));
    KVIK_ASSIGN(const auto fast, json.Float("beta_fast"));
    KVIK_ASSIGN(const auto slow, json.Float("beta_slow"));
    KVIK_ASSIGN(const auto truncate, json.Bool("truncate"));
    rope.beta_fast = fast.value_or(32.0);
    rope.beta_slow = slow.value_or(1.0);
    rope.truncate = truncate.value_or(true);
    const auto scale = [&](double m) {
      return rope.factor > 1 ? 0.1 * m * std::log(rope.factor) + 1 : 1.0;
    };
    rope.attention_factor = attention              ? *attention
                            : mscale && mscale_all ? scale(*mscale) / scale(*mscale_all)
                                                   : scale(1.0);
    return {};
  }
  return json.Complain(
      ErrorCode::kUnsupported, "rope_type",
      "'" + Printable(type) + "' is not supported (default, linear, llama3, yarn)");
}

Result<RopeConfig> ReadRope(const JsonFields& json, const ModelConfig& config) {
  RopeConfig rope;
  KVIK_ASSIGN(const auto theta, json.Float("rope_theta"));
  rope.theta = theta.value_or(10000.0);
  KVIK_ASSIGN(const auto partial, json.Float("partial_rotary_factor"));
  if (partial.value_or(1.0) != 1.0) {
    return json.Complain(ErrorCode::kUnsupported, "partial_rotary_factor",
                         "rotating a part of the head is not supported");
  }
  // The newer of the two spellings also holds theta.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    KVIK_ASSIGN(const auto scaling, json.Object(key));
    if (scaling) {
      KVIK_ASSIGN(const auto inner_theta, scaling->Float("rope_theta"));
      rope.theta = inner_theta.value_or(rope.theta);
      KVIK_TRY(ReadRopeScaling(*scaling, config, rope));
    }
  }
  return rope;
}

Result<void> ReadSlidingWindow(const JsonFields& json, ModelConfig& config) {
  KVIK_ASSIGN(const auto window, json.Int("sliding_window", 0, 1 << 28));
  if (config.architecture == "mistral") {
    config.sliding_window_tokens = static_cast<int32_t>(window.value_or(0));
  } else if (config.architecture != "llama") {
    KVIK_ASSIGN(const auto use, json.Bool("use_sliding_window"));
    if (use.value_or(false)) {
      config.sliding_window_tokens = static_cast<int32_t>(window.value_or(0));
      KVIK_ASSIGN(const auto first, json.Int("max_window_layers", 0, 1 << 20));
      config.sliding_window_first_layer = static_cast<int32_t>(first.value_or(0));
    }
  }
  return {};
}

void SortUnique(std::vector<TokenId>& tokens) {
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
}

Result<void> ReadEndTokens(const JsonFields& json, ModelConfig& config) {
  KVIK_ASSIGN(const auto ids, json.IntOrInts("eos_token_id", 0, config.vocab_size - 1));
  config.eos_tokens.insert(config.eos_tokens.end(), ids.begin(), ids.end());
  SortUnique(config.eos_tokens);
  return {};
}

Result<ModelConfig> ReadConfig(const std::string& folder) {
  KVIK_ASSIGN(const JsonFields json, JsonFields::Load(folder + "/config.json", kMaxConfigBytes));
  ModelConfig config;
  KVIK_ASSIGN(config.architecture, ArchitectureOf(json));
  KVIK_ASSIGN(const auto name, json.String("_name_or_path"));
  config.name = name.value_or("");
  if (json.Has("quantization_config")) {
    return json.Complain(ErrorCode::kUnsupported, "quantization_config",
                         "quantised safetensors are not supported; use bf16, f16 or f32 weights");
  }
  constexpr int64_t kMax = 1 << 24;
  KVIK_ASSIGN(const int64_t vocab, json.RequiredInt("vocab_size", 1, kMax));
  KVIK_ASSIGN(const int64_t hidden, json.RequiredInt("hidden_size", 1, kMax));
  KVIK_ASSIGN(const int64_t inter, json.RequiredInt("intermediate_size", 1, kMax));
  KVIK_ASSIGN(const int64_t layers, json.RequiredInt("num_hidden_layers", 1, kMax));
  KVIK_ASSIGN(const int64_t heads, json.RequiredInt("num_attention_heads", 1, kMax));
  KVIK_ASSIGN(const auto kv_heads, json.Int("num_key_value_heads", 1, kMax));
  KVIK_ASSIGN(const auto head_dim, json.Int("head_dim", 1, kMax));
  KVIK_ASSIGN(const int64_t context, json.RequiredInt("max_position_embeddings", 1, 1 << 28));
  KVIK_ASSIGN(const auto eps, json.Float("rms_norm_eps"));
  KVIK_ASSIGN(const auto tied, json.Bool("tie_word_embeddings"));
  KVIK_ASSIGN(const auto attention_bias, json.Bool("attention_bias"));
  KVIK_ASSIGN(const auto mlp_bias, json.Bool("mlp_bias"));
  KVIK_ASSIGN(const auto activation, json.String("hidden_act"));
  if (mlp_bias.value_or(false)) {
    return json.Complain(ErrorCode::kUnsupported, "mlp_bias", "is not supported");
  }
  if (activation.value_or("silu") != "silu") {
    return json.Complain(ErrorCode::kUnsupported, "hidden_act",
                         "'" + Printable(*activation) + "' is not supported (silu)");
  }
  config.vocab_size = static_cast<int32_t>(vocab);
  config.hidden_size = static_cast<int32_t>(hidden);
  config.intermediate_size = static_cast<int32_t>(inter);
  config.num_layers = static_cast<int32_t>(layers);
  config.num_heads = static_cast<int32_t>(heads);
  config.num_kv_heads = static_cast<int32_t>(kv_heads.value_or(heads));
  config.head_dim = static_cast<int32_t>(head_dim.value_or(hidden / heads));
  config.max_context_tokens = static_cast<int32_t>(context);
  config.rms_norm_eps = static_cast<float>(eps.value_or(1e-6));
  config.tied_embeddings = tied.value_or(false);
  const bool biased = attention_bias.value_or(false);
  config.qkv_bias = biased || config.architecture == "qwen2";
  config.output_bias = biased;
  config.qk_norm = config.architecture == "qwen3";
  KVIK_ASSIGN(const auto bos, json.Int("bos_token_id", 0, vocab - 1));
  config.bos_token = static_cast<TokenId>(bos.value_or(-1));
  KVIK_TRY(ReadEndTokens(json, config));
  KVIK_TRY(ReadSlidingWindow(json, config));
  KVIK_ASSIGN(config.rope, ReadRope(json, config));

  const std::string generation = folder + "/generation_config.json";
  if (Exists(generation)) {
    KVIK_ASSIGN(const JsonFields fields, JsonFields::Load(generation, kMaxConfigBytes));
    KVIK_TRY(ReadEndTokens(fields, config));
  }
  return config;
}

// File names of the shards, relative to the folder. With an index also which tensor is where.
struct Shards {
  std::vector<std::string> files;
  std::map<std::string, std::string> file_of_tensor;  // empty without an index
};

Result<Shards> FindShards(const std::string& folder) {
  Shards shards;
  const std::string index = folder + "/model.safetensors.index.json";
  if (!Exists(index)) {
    if (!Exists(folder + "/model.safetensors")) {
      return Err(ErrorCode::kNotFound,
                 "%s: holds neither model.safetensors nor model.safetensors.index.json; download "
                 "the safetensors weights",
                 folder.c_str());
    }
    shards.files.emplace_back("model.safetensors");
    return shards;
  }
  KVIK_ASSIGN(const JsonFields json, JsonFields::Load(index, kMaxIndexBytes));
  KVIK_ASSIGN(const auto map, json.Object("weight_map"));
  if (!map) {
    return json.Complain(ErrorCode::kCorrupt, "weight_map", "is missing");
  }
  std::set<std::string> names;
  for (const auto& [tensor, value] : map->json().items()) {
    if (!value.is_string()) {
      return json.Complain(ErrorCode::kCorrupt, "weight_map", "a file name is not a string");
    }
    const auto file = value.get<std::string>();
    // A name, not a path: an index must not reach out of its folder.
    if (file.empty() || file.find('/') != std::string::npos || file == "." || file == "..") {
      return json.Complain(ErrorCode::kCorrupt, "weight_map",
                           "'" + Printable(file) + "' is not a file name");
    }
    names.insert(file);
    shards.file_of_tensor.emplace(tensor, file);
  }
  if (names.empty() || names.size() > kMaxShards) {
    return json.Complain(ErrorCode::kCorrupt, "weight_map",
                         "names " + std::to_string(names.size()) + " files");
  }
  shards.files.assign(names.begin(), names.end());
  return shards;
}

// "model.layers.3.self_attn.q_proj.weight" -> "blk.3.attn_q.weight"; empty when unknown.
std::string GgufName(std::string_view name) {
  constexpr std::pair<std::string_view, const char*> kGlobal[] = {
      {"model.embed_tokens.weight", "token_embd.weight"},
      {"model.norm.weight", "output_norm.weight"},
      {"lm_head.weight", "output.weight"},
  };
  constexpr std::pair<std::string_view, const char*> kLayer[] = {
      {"input_layernorm.weight", "attn_norm.weight"},
      {"self_attn.q_proj.weight", "attn_q.weight"},
      {"self_attn.k_proj.weight", "attn_k.weight"},
      {"self_attn.v_proj.weight", "attn_v.weight"},
      {"self_attn.q_proj.bias", "attn_q.bias"},
      {"self_attn.k_proj.bias", "attn_k.bias"},
      {"self_attn.v_proj.bias", "attn_v.bias"},
      {"self_attn.q_norm.weight", "attn_q_norm.weight"},
      {"self_attn.k_norm.weight", "attn_k_norm.weight"},
      {"self_attn.o_proj.weight", "attn_output.weight"},
      {"self_attn.o_proj.bias", "attn_output.bias"},
      {"post_attention_layernorm.weight", "ffn_norm.weight"},
      {"mlp.gate_proj.weight", "ffn_gate.weight"},
      {"mlp.up_proj.weight", "ffn_up.weight"},
      {"mlp.down_proj.weight", "ffn_down.weight"},
  };
  for (const auto& [hf, gguf] : kGlobal) {
    if (name == hf) {
      return gguf;
    }
  }
  constexpr std::string_view kPrefix = "model.layers.";
  if (!name.starts_with(kPrefix)) {
    return "";
  }
  name.remove_prefix(kPrefix.size());
  int32_t layer = 0;
  const auto [end, status] = std::from_chars(name.data(), name.data() + name.size(), layer);
  if (status != std::errc() || layer < 0 || end == name.data() + name.size() || *end != '.') {
    return "";
  }
  name.remove_prefix(static_cast<size_t>(end - name.data()) + 1);
  for (const auto& [hf, gguf] : kLayer) {
    if (name == hf) {
      return "blk." + std::to_string(layer) + "." + gguf;
    }
  }
  return "";
}

// Buffers that old checkpoints saved although they follow from the configuration.
bool IsDerivedBuffer(std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn.masked_bias");
}

GgmlType TypeOf(SafetensorsDtype dtype) {
  switch (dtype) {
    case SafetensorsDtype::kF16:
      return GgmlType::kF16;
    case SafetensorsDtype::kBf16:
      return GgmlType::kBf16;
    case SafetensorsDtype::kF32:
      break;
  }
  return GgmlType::kF32;
}

Result<void> AddTensor(const std::string& path, const SafetensorsTensor& tensor,
                       ModelSource::Parts& parts) {
  const std::string name = GgufName(tensor.name);
  if (name.empty()) {
    return Err(ErrorCode::kUnsupported,
               "%s: tensor '%s' belongs to no %s model that kvik knows; use a model of "
               "architecture llama, mistral, smollm2, qwen2 or qwen3",
               path.c_str(), Printable(tensor.name).c_str(), parts.config.architecture.c_str());
  }
  if (name == "output.weight" && parts.config.tied_embeddings) {
    return {};  // a copy of the embedding table that the configuration says to ignore
  }
  if (!tensor.dtype || tensor.shape.empty() || tensor.shape.size() > 2) {
    return Err(
        ErrorCode::kUnsupported,
        "%s: tensor '%s' is %s with %zu dimensions; kvik reads BF16, F16 and F32 with 1 or 2",
        path.c_str(), Printable(tensor.name).c_str(), tensor.dtype_name.c_str(),
        tensor.shape.size());
  }
  WeightTensor weight;
  weight.type = TypeOf(*tensor.dtype);
  weight.rows = tensor.shape.size() == 2 ? static_cast<int64_t>(tensor.shape[0]) : 1;
  weight.cols = static_cast<int64_t>(tensor.shape.back());
  weight.data = tensor.data;
  if (!parts.weights.emplace(name, weight).second) {
    return Err(ErrorCode::kCorrupt,
               "%s: tensor '%s' is also in another shard; fetch the model again", path.c_str(),
               Printable(tensor.name).c_str());
  }
  return {};
}

Result<void> ReadShards(const std::string& folder, const Shards& shards,
                        ModelSource::Parts& parts) {
  size_t found = 0;
  for (const std::string& file : shards.files) {
    std::string path = folder;
    path += '/';
    path += file;
    KVIK_ASSIGN(MappedFile mapping, MappedFile::Open(path));
    KVIK_ASSIGN(const auto tensors, ParseSafetensors(path, mapping.bytes()));
    for (const SafetensorsTensor& tensor : tensors) {
      if (!shards.file_of_tensor.empty()) {
        const auto it = shards.file_of_tensor.find(tensor.name);
        if (it == shards.file_of_tensor.end() || it->second != file) {
          return Err(ErrorCode::kCorrupt,
                     "%s: tensor '%s' is not where model.safetensors.index.json says; fetch all "
                     "shards of one release",
                     path.c_str(), Printable(tensor.name).c_str());
        }
        ++found;
      }
      if (!IsDerivedBuffer(tensor.name)) {
        KVIK_TRY(AddTensor(path, tensor, parts));
      }
    }
    parts.files.push_back(std::move(mapping));
  }
  if (found != shards.file_of_tensor.size()) {
    return Err(ErrorCode::kCorrupt,
               "%s: model.safetensors.index.json lists %zu tensors, the shards hold %zu of them; "
               "fetch all shards of one release",
               folder.c_str(), shards.file_of_tensor.size(), found);
  }
  return {};
}

// chat_template.jinja, or tokenizer_config.json's chat_template: a string, or a list of named ones
// of which "default" counts.
Result<std::string> ReadChatTemplate(const std::string& folder) {
  const std::string file = folder + "/chat_template.jinja";
  if (Exists(file)) {
    KVIK_ASSIGN(const MappedFile mapping, MappedFile::Open(file));
    if (mapping.bytes().size() > kMaxTemplateBytes) {
      return Err(ErrorCode::kCorrupt, "%s: %zu bytes are too many for a template (limit %zu)",
                 file.c_str(), mapping.bytes().size(), kMaxTemplateBytes);
    }
    return std::string(reinterpret_cast<const char*>(mapping.bytes().data()),
                       mapping.bytes().size());
  }
  const std::string config = folder + "/tokenizer_config.json";
  if (!Exists(config)) {
    return std::string();
  }
  KVIK_ASSIGN(const JsonFields json, JsonFields::Load(config, kMaxTokenizerConfigBytes));
  if (!json.Has("chat_template") || json.json()["chat_template"].is_string()) {
    KVIK_ASSIGN(const auto text, json.String("chat_template"));
    return text.value_or("");
  }
  const nlohmann::json& list = json.json()["chat_template"];
  if (list.is_array()) {
    for (const nlohmann::json& entry : list) {
      if (entry.is_object() && entry.value("name", nlohmann::json()) == "default") {
        const auto text = entry.find("template");
        if (text != entry.end() && text->is_string()) {
          return text->get<std::string>();
        }
      }
    }
  }
  return json.Complain(ErrorCode::kCorrupt, "chat_template",
                       "is neither a string nor a list with a template named 'default'");
}

Result<std::vector<std::pair<std::string, std::string>>> Describe(const std::string& folder) {
  KVIK_ASSIGN(const JsonFields json, JsonFields::Load(folder + "/config.json", kMaxConfigBytes));
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& [key, value] : json.json().items()) {
    std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    out.emplace_back(key, text.size() > 80 ? text.substr(0, 80) + "..." : text);
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<ModelSource>> OpenHfFolder(const std::string& path) {
  if (!Exists(path + "/config.json")) {
    return Err(
        ErrorCode::kNotFound,
        "%s: the folder has no config.json; name a .gguf file or a Hugging Face model folder",
        path.c_str());
  }
  ModelSource::Parts parts;
  parts.path = path;
  parts.container = "safetensors";
  KVIK_ASSIGN(parts.config, ReadConfig(path));
  KVIK_ASSIGN(const Shards shards, FindShards(path));
  if (shards.files.size() > 1) {
    parts.container += " in " + std::to_string(shards.files.size()) + " shards";
  }
  KVIK_TRY(ReadShards(path, shards, parts));
  KVIK_ASSIGN(parts.chat_template, ReadChatTemplate(path));
  KVIK_ASSIGN(parts.metadata, Describe(path));
  return ModelSource::Create(std::move(parts));
}

}  // namespace kvik::model
