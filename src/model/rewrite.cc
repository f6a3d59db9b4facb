// SPDX-License-Identifier: Apache-2.0
#include "model/rewrite.h"

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "model/gguf_writer.h"
#include "model/output_file.h"
#include "model/safetensors.h"
#include "model/weights.h"

namespace kvik::model {
namespace {

std::vector<std::byte> BytesOf(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight".
std::string HfName(const std::string& name) {
  constexpr std::pair<const char*, const char*> kParts[] = {
      {"attn_norm.", "input_layernorm."},    {"attn_q_norm.", "self_attn.q_norm."},
      {"attn_k_norm.", "self_attn.k_norm."}, {"attn_q.", "self_attn.q_proj."},
      {"attn_k.", "self_attn.k_proj."},      {"attn_v.", "self_attn.v_proj."},
      {"attn_output.", "self_attn.o_proj."}, {"ffn_norm.", "post_attention_layernorm."},
      {"ffn_gate.", "mlp.gate_proj."},       {"ffn_up.", "mlp.up_proj."},
      {"ffn_down.", "mlp.down_proj."}};
  if (name == "token_embd.weight") {
    return "model.embed_tokens.weight";
  }
  if (name == "output_norm.weight") {
    return "model.norm.weight";
  }
  if (name == "output.weight") {
    return "lm_head.weight";
  }
  const size_t layer_end = name.find('.', 4);
  const std::string part = name.substr(layer_end + 1);
  for (const auto& [gguf, hf] : kParts) {
    if (part.starts_with(gguf)) {
      return "model.layers." + name.substr(4, layer_end - 4) + "." + hf +
             part.substr(std::strlen(gguf));
    }
  }
  KVIK_CHECK(false, "no Hugging Face name for %s", name.c_str());
}

nlohmann::ordered_json RopeJson(const RopeConfig& rope) {
  switch (rope.scaling) {
    case RopeScaling::kNone:
      break;
    case RopeScaling::kLinear:
      return {{"rope_type", "linear"}, {"factor", rope.factor}};
    case RopeScaling::kLlama3:
      return {{"rope_type", "llama3"},
              {"factor", rope.factor},
              {"low_freq_factor", rope.low_freq_factor},
              {"high_freq_factor", rope.high_freq_factor},
              {"original_max_position_embeddings", rope.original_context_tokens}};
    case RopeScaling::kYarn:
      return {{"rope_type", "yarn"},
              {"factor", rope.factor},
              {"attention_factor", rope.attention_factor},
              {"beta_fast", rope.beta_fast},
              {"beta_slow", rope.beta_slow},
              {"truncate", rope.truncate},
              {"original_max_position_embeddings", rope.original_context_tokens}};
  }
  return nullptr;
}

nlohmann::ordered_json ConfigJson(const ModelConfig& config) {
  nlohmann::ordered_json json = {{"model_type", config.architecture},
                                 {"vocab_size", config.vocab_size},
                                 {"hidden_size", config.hidden_size},
                                 {"intermediate_size", config.intermediate_size},
                                 {"num_hidden_layers", config.num_layers},
                                 {"num_attention_heads", config.num_heads},
                                 {"num_key_value_heads", config.num_kv_heads},
                                 {"head_dim", config.head_dim},
                                 {"max_position_embeddings", config.max_context_tokens},
                                 {"rms_norm_eps", config.rms_norm_eps},
                                 {"tie_word_embeddings", config.tied_embeddings},
                                 {"attention_bias", config.output_bias},
                                 {"hidden_act", "silu"},
                                 {"rope_theta", config.rope.theta},
                                 {"rope_scaling", RopeJson(config.rope)},
                                 {"eos_token_id", config.eos_tokens}};
  if (config.bos_token >= 0) {
    json["bos_token_id"] = config.bos_token;
  }
  if (config.sliding_window_tokens > 0) {
    // Only mistral has a window on all layers in this form; qwen names the first one.
    if (config.architecture == "llama") {
      json["model_type"] = "mistral";
    }
    json["sliding_window"] = config.sliding_window_tokens;
    json["use_sliding_window"] = true;
    json["max_window_layers"] = config.sliding_window_first_layer;
  }
  return json;
}

Result<void> WriteJson(const std::string& path, const nlohmann::ordered_json& json) {
  const std::string text = json.dump(2, ' ', true, nlohmann::json::error_handler_t::replace);
  KVIK_ASSIGN(OutputFile file, OutputFile::Create(path));
  KVIK_TRY(file.Write(std::as_bytes(std::span(text.data(), text.size()))));
  return file.Close();
}

}  // namespace

Result<void> WriteF32Gguf(const ModelSource& source, const std::string& path) {
  const GgufFile* gguf = source.gguf();
  if (gguf == nullptr) {
    return Err(ErrorCode::kInvalidInput, "%s: is not a GGUF file", source.path().c_str());
  }
  GgufWriter writer;
  for (const std::string_view key : gguf->Keys()) {
    // What the new file is not: a part of a set, of the old file type, differently aligned.
    if (!key.starts_with("split.") && key != "general.file_type" && key != "general.alignment") {
      writer.CopyPair(*gguf, key);
    }
  }
  for (const auto& [name, weight] : source.weights()) {
    WeightTensor in_file_order = weight;
    in_file_order.interleaved_head_dim = 0;
    std::vector<uint64_t> dims = {static_cast<uint64_t>(weight.cols)};
    if (weight.rows > 1) {
      dims.push_back(static_cast<uint64_t>(weight.rows));
    }
    writer.AddTensor(name, GgmlType::kF32, std::move(dims),
                     [in_file_order] { return BytesOf(DequantizeWeight(in_file_order)); });
  }
  const std::vector<float>& divisors = source.config().rope.frequency_divisors;
  if (!divisors.empty()) {
    writer.AddTensor("rope_freqs.weight", GgmlType::kF32, {divisors.size()},
                     std::as_bytes(std::span(divisors)));
  }
  return writer.WriteTo(path);
}

Result<void> WriteF32HfFolder(const ModelSource& source, const std::string& folder) {
  const ModelConfig& config = source.config();
  if (!config.rope.frequency_divisors.empty()) {
    return Err(ErrorCode::kUnsupported,
               "%s: its rotary divisors (rope_freqs.weight) have no form in a Hugging Face folder",
               source.path().c_str());
  }
  if (config.architecture == "llama" && config.qkv_bias != config.output_bias) {
    return Err(ErrorCode::kUnsupported,
               "%s: biases of q, k and v without one of the output have no form in a Hugging Face "
               "llama folder",
               source.path().c_str());
  }
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure) {
    return Err(ErrorCode::kUnavailable, "%s: cannot make the folder: %s", folder.c_str(),
               failure.message().c_str());
  }
  KVIK_TRY(WriteJson(folder + "/config.json", ConfigJson(config)));
  KVIK_TRY(
      WriteJson(folder + "/tokenizer_config.json", {{"chat_template", source.chat_template()}}));
  std::vector<SafetensorsOutput> tensors;
  for (const auto& entry : source.weights()) {
    const std::string& name = entry.first;
    const WeightTensor& weight = entry.second;
    SafetensorsOutput out;
    out.name = HfName(name);
    out.shape = {static_cast<uint64_t>(weight.cols)};
    if (weight.rows > 1) {
      out.shape.insert(out.shape.begin(), static_cast<uint64_t>(weight.rows));
    }
    out.make = [weight] { return BytesOf(DequantizeWeight(weight)); };
    tensors.push_back(std::move(out));
  }
  return WriteSafetensors(folder + "/model.safetensors", tensors);
}

size_t F32Bytes(const ModelSource& source) {
  size_t total = 0;
  for (const auto& [name, weight] : source.weights()) {
    total += static_cast<size_t>(weight.rows) * static_cast<size_t>(weight.cols) * sizeof(float);
  }
  return total;
}

}  // namespace kvik::model
