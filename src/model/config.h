// SPDX-License-Identifier: Apache-2.0
// model/config.h: the shape of a model, whatever file it came from.
//
// One description covers llama, mistral, smollm, qwen2 and qwen3: they differ in the optional
// parts below, not in the order of operations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/types.h"

namespace kvik::model {

// How the rotation frequencies are stretched beyond the trained context.
enum class RopeScaling { kNone, kLinear, kLlama3, kYarn };

struct RopeConfig {
  double theta = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;                  // linear, llama3, yarn
  double low_freq_factor = 1.0;         // llama3
  double high_freq_factor = 4.0;        // llama3
  int32_t original_context_tokens = 0;  // llama3, yarn: the trained length
  double attention_factor = 0.0;        // yarn: scale of cos and sin; 0 = 0.1 ln(factor) + 1
  double beta_fast = 32.0;              // yarn
  double beta_slow = 1.0;               // yarn
  bool truncate = true;                 // yarn: round the correction range to whole dimensions
  // Divisors of each frequency, [head_dim / 2]; empty = none. GGUF stores llama3 scaling this
  // way, computed, and then `scaling` is kNone.
  std::vector<float> frequency_divisors;
  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

struct ModelConfig {
  std::string architecture;  // as the file names it: "llama", "mistral", "qwen2", "qwen3"
  std::string name;          // for people; may be empty
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;            // even; num_heads * head_dim may differ from hidden_size
  int32_t max_context_tokens = 0;  // what the file promises
  float rms_norm_eps = 1e-5F;
  bool tied_embeddings = false;  // the output head is the embedding table
  bool qkv_bias = false;         // qwen2
  bool output_bias = false;      // bias of the attention's output projection (llama attention_bias)
  bool qk_norm = false;          // qwen3: rms norm of every head of q and k before rope
  int32_t sliding_window_tokens =
      0;  // 0 = none; else a token sees itself and the window - 1 before
  // Layers that use the window: all of them, or those from this index on (qwen2's
  // max_window_layers). Ignored without a window.
  int32_t sliding_window_first_layer = 0;
  RopeConfig rope;
  TokenId bos_token = -1;           // -1 = the model has none
  std::vector<TokenId> eos_tokens;  // any of them ends a generation; ascending, no duplicates

  [[nodiscard]] int32_t q_size() const { return num_heads * head_dim; }
  [[nodiscard]] int32_t kv_size() const { return num_kv_heads * head_dim; }
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// Every limit and relation a forward pass relies on: positive sizes, bounded so that products fit
// 64 bits, heads divisible by kv heads, even head_dim, finite eps and rope. kInvalidInput names
// the field.
Result<void> ValidateConfig(const ModelConfig& config);

}  // namespace kvik::model
