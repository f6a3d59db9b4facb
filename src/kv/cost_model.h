// SPDX-License-Identifier: Apache-2.0
// kv/cost_model.h: what computing KV costs, from counts alone.
//
// A prefill chunk of segments, segment i computing q_i tokens at positions [start_i, end_i) behind
// l_i tokens that have KV already:
//
//   T = k1 + k2 sum(q_i) + k3 sum(l_i) + k4 segments + k5 sum(end_i^2 - start_i^2)
//
// and decodes in the same step add k6 n_decode + k7 sum(kv_len_decode). Because start_i = l_i and
// end_i = l_i + q_i in sum over all tokens of a prompt, the share of one block depends on its
// position only: b tokens from position p cost b (a + c (p + b/2)), a = k2 - k3, c = 2 k5.
// All in microseconds and tokens.
#pragma once

#include <cstdint>

namespace kvik::kv {

// The counts of one step.
struct StepFeatures {
  double segments = 0;
  double computed_tokens = 0;  // sum of q_i
  double cached_tokens = 0;    // sum of l_i: tokens with KV before each segment
  double squares = 0;          // sum of end_i^2 - start_i^2
  double decodes = 0;
  double decode_kv_tokens = 0;  // sum of their contexts

  // A segment that computes [first_pos, first_pos + num_tokens).
  void AddSegment(int32_t first_pos, int32_t num_tokens) {
    const double start = first_pos;
    const double end = start + num_tokens;
    segments += 1;
    computed_tokens += num_tokens;
    cached_tokens += start;
    squares += end * end - start * start;
  }
  void AddDecode(int32_t context_tokens) {
    decodes += 1;
    decode_kv_tokens += context_tokens;
  }
};

struct CostModel {
  double step_us = 0;             // k1
  double token_us = 0;            // k2
  double cached_token_us = 0;     // k3
  double segment_us = 0;          // k4
  double square_us = 0;           // k5
  double decode_us = 0;           // k6
  double decode_kv_token_us = 0;  // k7

  // Eviction needs only the ratio of a and c; these are an 8B model's on one H20 (111 us a token,
  // 5.8e-3 us a token and position), which is close to what other pairs of model and machine have.
  static constexpr CostModel Default() { return CostModel{.token_us = 111.0, .square_us = 2.9e-3}; }

  [[nodiscard]] double a_us() const { return token_us - cached_token_us; }
  [[nodiscard]] double c_us() const { return 2 * square_us; }
  // What tokens [first_pos, first_pos + num_tokens) add to a prefill. > 0 for a valid model.
  [[nodiscard]] double RecomputeUs(int64_t first_pos, int64_t num_tokens) const {
    const auto b = static_cast<double>(num_tokens);
    return b * (a_us() + c_us() * (static_cast<double>(first_pos) + b / 2));
  }
  [[nodiscard]] double StepUs(const StepFeatures& f) const {
    return step_us + token_us * f.computed_tokens + cached_token_us * f.cached_tokens +
           segment_us * f.segments + square_us * f.squares + decode_us * f.decodes +
           decode_kv_token_us * f.decode_kv_tokens;
  }
};

}  // namespace kvik::kv
