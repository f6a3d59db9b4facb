// SPDX-License-Identifier: Apache-2.0
#include "model/config.h"

#include <cmath>

namespace kvik::model {
namespace {

Result<void> InRange(const char* field, int64_t value, int64_t min, int64_t max) {
  if (value < min || value > max) {
    return Err(ErrorCode::kInvalidInput, "model configuration: %s = %lld is outside [%lld, %lld]",
               field, static_cast<long long>(value), static_cast<long long>(min),
               static_cast<long long>(max));
  }
  return {};
}

Result<void> Positive(const char* field, double value) {
  if (!(value > 0) || !std::isfinite(value)) {
    return Err(ErrorCode::kInvalidInput, "model configuration: %s = %g is not a positive number",
               field, value);
  }
  return {};
}

Result<void> ValidateRope(const RopeConfig& rope, int32_t head_dim) {
  KVIK_TRY(Positive("rope theta", rope.theta));
  KVIK_TRY(Positive("rope factor", rope.factor));
  if (rope.scaling == RopeScaling::kLlama3 || rope.scaling == RopeScaling::kYarn) {
    KVIK_TRY(InRange("rope original context", rope.original_context_tokens, 1, 1 << 28));
  }
  if (rope.scaling == RopeScaling::kLlama3) {
    KVIK_TRY(Positive("rope low_freq_factor", rope.low_freq_factor));
    KVIK_TRY(Positive("rope high_freq_factor", rope.high_freq_factor));
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      return Err(ErrorCode::kInvalidInput,
                 "model configuration: rope high_freq_factor %g is not above low_freq_factor %g",
                 rope.high_freq_factor, rope.low_freq_factor);
    }
  }
  if (rope.scaling == RopeScaling::kYarn) {
    KVIK_TRY(Positive("rope beta_fast", rope.beta_fast));
    KVIK_TRY(Positive("rope beta_slow", rope.beta_slow));
    if (!(rope.attention_factor >= 0) || !std::isfinite(rope.attention_factor)) {
      return Err(ErrorCode::kInvalidInput,
                 "model configuration: rope attention_factor %g is negative or not finite",
                 rope.attention_factor);
    }
    if (rope.theta == 1.0) {
      return Err(ErrorCode::kInvalidInput, "model configuration: yarn needs a rope theta above 1");
    }
  }
  if (!rope.frequency_divisors.empty()) {
    if (rope.frequency_divisors.size() != static_cast<size_t>(head_dim / 2)) {
      return Err(ErrorCode::kInvalidInput,
                 "model configuration: %zu rope frequency divisors for a head_dim of %d",
                 rope.frequency_divisors.size(), head_dim);
    }
    for (const float divisor : rope.frequency_divisors) {
      KVIK_TRY(Positive("rope frequency divisor", divisor));
    }
  }
  return {};
}

}  // namespace

Result<void> ValidateConfig(const ModelConfig& config) {
  KVIK_TRY(InRange("vocab_size", config.vocab_size, 1, 1 << 24));
  KVIK_TRY(InRange("hidden_size", config.hidden_size, 1, 1 << 17));
  KVIK_TRY(InRange("intermediate_size", config.intermediate_size, 1, 1 << 20));
  KVIK_TRY(InRange("num_layers", config.num_layers, 1, 1024));
  KVIK_TRY(InRange("num_heads", config.num_heads, 1, 1024));
  KVIK_TRY(InRange("num_kv_heads", config.num_kv_heads, 1, config.num_heads));
  KVIK_TRY(InRange("head_dim", config.head_dim, 2, 1024));
  KVIK_TRY(InRange("max_context_tokens", config.max_context_tokens, 1, 1 << 28));
  if (config.num_heads % config.num_kv_heads != 0) {
    return Err(ErrorCode::kInvalidInput,
               "model configuration: %d heads are not a multiple of %d kv heads", config.num_heads,
               config.num_kv_heads);
  }
  if (config.head_dim % 2 != 0) {
    return Err(ErrorCode::kInvalidInput, "model configuration: head_dim = %d is odd",
               config.head_dim);
  }
  KVIK_TRY(Positive("rms_norm_eps", config.rms_norm_eps));
  KVIK_TRY(InRange("sliding_window", config.sliding_window_tokens, 0, 1 << 28));
  KVIK_TRY(InRange("sliding_window_first_layer", config.sliding_window_first_layer, 0, 1 << 20));
  KVIK_TRY(InRange("bos_token", config.bos_token, -1, config.vocab_size - 1));
  for (const TokenId token : config.eos_tokens) {
    KVIK_TRY(InRange("eos_token", token, 0, config.vocab_size - 1));
  }
  return ValidateRope(config.rope, config.head_dim);
}

}  // namespace kvik::model
