// SPDX-License-Identifier: Apache-2.0
// model/sampling_params.h: how the next token is drawn from the logits. Names and defaults are
// vLLM's and OpenAI's.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/types.h"

namespace kvik::model {

struct SamplingParams {
  float temperature = 1.0F;         // 0 = greedy: the lowest token id among the largest logits
  int32_t top_k = 0;                // 0 or -1 = all
  float top_p = 1.0F;               // (0, 1]
  float min_p = 0.0F;               // [0, 1]
  float repetition_penalty = 1.0F;  // > 0; over prompt and output
  float presence_penalty = 0.0F;    // [-2, 2]; over output
  float frequency_penalty = 0.0F;   // [-2, 2]; over output
  std::vector<std::pair<TokenId, float>> logit_bias;
  std::optional<uint64_t> seed;  // none = the engine derives one per request
  int32_t num_logprobs = -1;     // -1 = none; 0 = the sampled token's; n = and the n most probable
};

}  // namespace kvik::model
