// SPDX-License-Identifier: Apache-2.0
#include "model/model_source.h"

#include <cstdio>
#include <filesystem>
#include <system_error>

#include "model/printable.h"

namespace kvik::model {
namespace {

std::string Shape(int64_t rows, int64_t cols) {
  char text[64];
  std::snprintf(text, sizeof(text), "[%lld, %lld]", static_cast<long long>(rows),
                static_cast<long long>(cols));
  return text;
}

Result<void> CheckWeights(const ModelSource::Parts& parts) {
  size_t known = 0;
  for (const ExpectedWeight& expected : ExpectedWeights(parts.config)) {
    const auto it = parts.weights.find(expected.name);
    if (it == parts.weights.end()) {
      return Err(ErrorCode::kCorrupt,
                 "%s: tensor '%s' is missing; the model is incomplete, fetch it again",
                 parts.path.c_str(), expected.name.c_str());
    }
    if (it->second.rows != expected.rows || it->second.cols != expected.cols) {
      return Err(ErrorCode::kCorrupt,
                 "%s: tensor '%s' has shape %s, the configuration says %s; the file is damaged",
                 parts.path.c_str(), expected.name.c_str(),
                 Shape(it->second.rows, it->second.cols).c_str(),
                 Shape(expected.rows, expected.cols).c_str());
    }
    ++known;
  }
  if (known == parts.weights.size()) {
    return {};
  }
  // A weight that would not be used means that the model computes something else.
  std::map<std::string, WeightTensor> unknown = parts.weights;
  for (const ExpectedWeight& expected : ExpectedWeights(parts.config)) {
    unknown.erase(expected.name);
  }
  return Err(ErrorCode::kUnsupported,
             "%s: tensor '%s' belongs to no %s model that kvik knows; use a model of architecture "
             "llama, mistral, smollm2, qwen2 or qwen3",
             parts.path.c_str(), Printable(unknown.begin()->first).c_str(),
             parts.config.architecture.c_str());
}

}  // namespace

std::vector<ExpectedWeight> ExpectedWeights(const ModelConfig& config) {
  const int64_t hidden = config.hidden_size;
  const int64_t inter = config.intermediate_size;
  const int64_t q = config.q_size();
  const int64_t kv = config.kv_size();
  std::vector<ExpectedWeight> out;
  out.push_back({"token_embd.weight", config.vocab_size, hidden});
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    out.push_back({prefix + "attn_norm.weight", 1, hidden});
    out.push_back({prefix + "attn_q.weight", q, hidden});
    out.push_back({prefix + "attn_k.weight", kv, hidden});
    out.push_back({prefix + "attn_v.weight", kv, hidden});
    if (config.qkv_bias) {
      out.push_back({prefix + "attn_q.bias", 1, q});
      out.push_back({prefix + "attn_k.bias", 1, kv});
      out.push_back({prefix + "attn_v.bias", 1, kv});
    }
    if (config.qk_norm) {
      out.push_back({prefix + "attn_q_norm.weight", 1, config.head_dim});
      out.push_back({prefix + "attn_k_norm.weight", 1, config.head_dim});
    }
    out.push_back({prefix + "attn_output.weight", hidden, q});
    if (config.output_bias) {
      out.push_back({prefix + "attn_output.bias", 1, hidden});
    }
    out.push_back({prefix + "ffn_norm.weight", 1, hidden});
    out.push_back({prefix + "ffn_gate.weight", inter, hidden});
    out.push_back({prefix + "ffn_up.weight", inter, hidden});
    out.push_back({prefix + "ffn_down.weight", hidden, inter});
  }
  out.push_back({"output_norm.weight", 1, hidden});
  if (!config.tied_embeddings) {
    out.push_back({"output.weight", config.vocab_size, hidden});
  }
  return out;
}

Result<std::unique_ptr<ModelSource>> ModelSource::Create(Parts parts) {
  const Result<void> valid = ValidateConfig(parts.config);
  if (!valid) {
    return valid.error().Wrap(parts.path);
  }
  KVIK_TRY(CheckWeights(parts));
  return std::unique_ptr<ModelSource>(new ModelSource(std::move(parts)));
}

const WeightTensor& ModelSource::Weight(const std::string& name) const {
  const auto it = parts_.weights.find(name);
  KVIK_CHECK(it != parts_.weights.end(), "no weight %s", name.c_str());
  return it->second;
}

Result<std::unique_ptr<ModelSource>> ModelSource::Open(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    return Err(ErrorCode::kNotFound,
               "%s: no such model; name a .gguf file or a folder with config.json", path.c_str());
  }
  return std::filesystem::is_directory(path, ignored) ? OpenHfFolder(path) : OpenGguf(path);
}

}  // namespace kvik::model
