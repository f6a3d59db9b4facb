// SPDX-License-Identifier: Apache-2.0
#include "app/inspect.h"

#include <cinttypes>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "app/inspect_compressed.h"
#include "app/models.h"
#include "base/byte_size.h"
#include "model/tokenizer_source.h"

namespace kvik::app {
namespace {

using Json = nlohmann::ordered_json;

struct FormatTotal {
  int64_t tensors = 0;
  uint64_t values = 0;
  uint64_t size_bytes = 0;
};

const char* ScalingName(model::RopeScaling scaling) {
  switch (scaling) {
    case model::RopeScaling::kNone:
      return "none";
    case model::RopeScaling::kLinear:
      return "linear";
    case model::RopeScaling::kLlama3:
      return "llama3";
    case model::RopeScaling::kYarn:
      return "yarn";
  }
  return "?";
}

Json RopeJson(const model::RopeConfig& rope) {
  Json json;
  json["theta"] = rope.theta;
  json["scaling"] = ScalingName(rope.scaling);
  if (rope.scaling != model::RopeScaling::kNone) {
    json["factor"] = rope.factor;
  }
  if (rope.original_context_tokens > 0) {
    json["original_context"] = rope.original_context_tokens;
  }
  if (!rope.frequency_divisors.empty()) {
    json["frequency_divisors"] = rope.frequency_divisors.size();
  }
  return json;
}

Json ShapeJson(const model::ModelConfig& config) {
  Json json;
  json["layers"] = config.num_layers;
  json["hidden"] = config.hidden_size;
  json["intermediate"] = config.intermediate_size;
  json["heads"] = config.num_heads;
  json["kv_heads"] = config.num_kv_heads;
  json["head_dim"] = config.head_dim;
  json["vocabulary"] = config.vocab_size;
  json["context"] = config.max_context_tokens;
  json["tied_embeddings"] = config.tied_embeddings;
  json["qkv_bias"] = config.qkv_bias;
  json["qk_norm"] = config.qk_norm;
  json["sliding_window"] = config.sliding_window_tokens;
  return json;
}

Json TokenizerJson(const text::TokenizerSpec& spec) {
  Json json;
  json["kind"] =
      spec.kind == text::TokenizerKind::kByteLevelBpe ? "byte-level BPE" : "SentencePiece BPE";
  json["pieces"] = spec.pieces.size();
  json["merges"] = spec.merges.size();
  const auto piece = [&](const std::optional<TokenId>& id) -> Json {
    if (!id || static_cast<size_t>(*id) >= spec.pieces.size()) {
      return nullptr;
    }
    return spec.pieces[static_cast<size_t>(*id)];
  };
  json["bos"] = piece(spec.bos_id);
  json["eos"] = piece(spec.eos_id);
  json["adds_bos"] = spec.add_bos;
  return json;
}

// Values as text for the table; nested objects on one line.
void Print(const char* title, const Json& section) {
  std::printf("%s\n", title);
  for (const auto& [key, value] : section.items()) {
    std::string text;
    if (value.is_object()) {
      for (const auto& [inner, number] : value.items()) {
        text += (text.empty() ? "" : ", ") + inner + " " +
                (number.is_string() ? number.get<std::string>() : number.dump());
      }
    } else {
      text = value.is_string() ? value.get<std::string>()
                               : value.dump(-1, ' ', false, Json::error_handler_t::replace);
    }
    std::printf("  %-22s %s\n", key.c_str(), text.c_str());
  }
}

}  // namespace

Result<int> Inspect(const InspectOptions& options) {
  if (const auto kind = RecogniseCompressed(options.runtime.model)) {
    return InspectCompressed(options.runtime.model, *kind, options.json);
  }
  KVIK_ASSIGN(const std::string path, ResolveModel(options.runtime.model));
  KVIK_ASSIGN(const std::unique_ptr<model::ModelSource> source, model::ModelSource::Open(path));
  KVIK_ASSIGN(const Isa isa, SelectIsa());
  const model::ModelConfig& config = source->config();
  const Result<text::TokenizerSpec> tokenizer = model::ReadTokenizerSpec(*source);
  const Result<MemoryPlan> plan = PlanMemory(options.runtime, *source);

  std::map<std::string, FormatTotal> formats;
  uint64_t parameters = 0;
  uint64_t weight_bytes = 0;
  for (const auto& [name, weight] : source->weights()) {
    FormatTotal& total = formats[model::InfoOf(weight.type).name];
    const auto values = static_cast<uint64_t>(weight.rows) * static_cast<uint64_t>(weight.cols);
    ++total.tensors;
    total.values += values;
    total.size_bytes += weight.data.size();
    parameters += values;
    weight_bytes += weight.data.size();
  }

  Json file;
  file["path"] = path;
  file["container"] = source->container();
  file["name"] = config.name;
  file["architecture"] = config.architecture;
  file["parameters"] = parameters;
  file["weights"] = FormatByteSize(weight_bytes);
  Json tensors;
  for (const auto& [name, total] : formats) {
    tensors[name] = {
        {"tensors", total.tensors}, {"values", total.values}, {"bytes", total.size_bytes}};
  }
  const ComputeType compute = options.runtime.compute.value_or(DefaultCompute(isa));
  kv::KvGeometry geometry{config.num_layers, config.num_kv_heads, config.head_dim,
                          options.runtime.block_size_tokens, options.runtime.kv_dtype};
  Json run;
  run["kernels"] = IsaName(isa);
  run["arithmetic"] = compute == ComputeType::kBf16 ? "bf16" : "f32";
  if (!ComputeSupported(isa, compute)) {
    run["arithmetic"] = "bf16, which these kernels do not have: use --dtype f32";
  }
  run["kv_storage"] = geometry.dtype == kv::KvDtype::kBf16 ? "bf16" : "f32";
  run["kv_bytes_per_token"] = geometry.bytes_per_token();
  run["kv_bytes_per_block"] = geometry.bytes_per_block();
  if (plan) {
    run["kv_blocks"] = plan->num_blocks;
    run["kv_cache"] = FormatByteSize(plan->pool_bytes);
    run["kv_tokens"] = static_cast<int64_t>(plan->num_blocks) * geometry.block_size_tokens;
    if (plan->available_bytes) {
      run["memory_available"] = FormatByteSize(*plan->available_bytes);
    }
  } else {
    run["kv_cache"] = plan.error().message;
  }
  const Json tokenizer_json =
      tokenizer ? TokenizerJson(*tokenizer) : Json{{"error", tokenizer.error().message}};
  const std::string& chat_template = source->chat_template();

  if (options.json) {
    Json json;
    json["file"] = file;
    json["shape"] = ShapeJson(config);
    json["rope"] = RopeJson(config.rope);
    json["formats"] = tensors;
    json["tokenizer"] = tokenizer_json;
    json["chat_template"] = chat_template.empty() ? Json() : Json(chat_template);
    json["run"] = run;
    if (options.metadata) {
      for (const auto& [key, value] : source->metadata()) {
        json["metadata"][key] = value;
      }
    }
    if (options.tensors) {
      for (const auto& [name, weight] : source->weights()) {
        json["tensors"][name] = {{"format", model::InfoOf(weight.type).name},
                                 {"rows", weight.rows},
                                 {"cols", weight.cols}};
      }
    }
    std::printf("%s\n", json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
    return 0;
  }
  Print("File", file);
  Print("Shape", ShapeJson(config));
  Print("Rotary positions", RopeJson(config.rope));
  Print("Weights by format", tensors);
  Print("Tokenizer", tokenizer_json);
  std::printf("Chat template\n  %s\n",
              chat_template.empty()
                  ? "none: ChatML stands in"
                  : (std::to_string(chat_template.size()) + " bytes of Jinja").c_str());
  Print("What kvik does with it here", run);
  if (options.metadata) {
    std::printf("Metadata\n");
    for (const auto& [key, value] : source->metadata()) {
      std::printf("  %-40s %s\n", key.c_str(), value.c_str());
    }
  }
  if (options.tensors) {
    std::printf("Tensors\n");
    for (const auto& [name, weight] : source->weights()) {
      std::printf("  %-40s %-5s [%" PRId64 ", %" PRId64 "]\n", name.c_str(),
                  model::InfoOf(weight.type).name, weight.rows, weight.cols);
    }
  }
  return 0;
}

}  // namespace kvik::app
