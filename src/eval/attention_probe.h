// SPDX-License-Identifier: Apache-2.0
// eval/attention_probe.h: what a change of keys and values does to attention itself: the same
// queries, other rows. Pure functions, float32 sums in a fixed order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/float16.h"

namespace kvik::eval {

// Queries of one layer and the rows they look at.
struct ProbeShape {
  int32_t num_queries = 0;  // tokens whose queries there are
  int32_t num_q_heads = 0;  // a multiple of num_kv_heads
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t num_tokens = 0;
  float scale = 0;  // of the scores
};

// One head's attention: scores [num_queries * group, num_tokens] before softmax, scaled, and
// outputs [num_queries * group, head_dim].
struct HeadAttention {
  std::vector<float> scores;
  std::vector<float> outputs;
};

// Attention of kv head `kv_head`. `queries` [num_queries, num_q_heads, head_dim]; keys and values
// [num_tokens, head_dim] of that head; query i sees tokens [first_visible[i], num_tokens) that are
// `kept` (empty: all).
HeadAttention ComputeHead(const ProbeShape& shape, int32_t kv_head, std::span<const float> queries,
                          std::span<const int32_t> first_visible, std::span<const Bf16> keys,
                          std::span<const Bf16> values, std::span<const uint8_t> kept);

// Squared differences, to be added up over heads, layers and prompts.
struct AttentionError {
  // Of scores, after taking each query's mean difference out, which softmax does not see; over the
  // variance of the raw scores.
  double score_difference = 0;
  double score_variance = 0;
  double output_difference = 0;
  double output_norm = 0;

  AttentionError& operator+=(const AttentionError& other);
};
AttentionError CompareHeads(const ProbeShape& shape, std::span<const int32_t> first_visible,
                            const HeadAttention& raw, const HeadAttention& coded,
                            std::span<const uint8_t> kept);

}  // namespace kvik::eval
