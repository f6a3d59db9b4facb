// SPDX-License-Identifier: Apache-2.0
#include "eval/attention_probe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

#include "base/check.h"

namespace kvik::eval {
namespace {

// Independent sums, so that a compiler may keep them in vectors.
constexpr size_t kLanes = 16;

float Dot(const float* a, const float* b, size_t n) {
  std::array<float, kLanes> sums = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += a[i + lane] * b[i + lane];
    }
  }
  float total = 0;
  for (const float sum : sums) {
    total += sum;
  }
  for (; i < n; ++i) {
    total += a[i] * b[i];
  }
  return total;
}

void Widen(std::span<const Bf16> from, float* to) {
  for (size_t i = 0; i < from.size(); ++i) {
    to[i] = ToFloat(from[i]);
  }
}

bool Kept(std::span<const uint8_t> kept, size_t token) { return kept.empty() || kept[token] != 0; }

// Softmax in place over the tokens that are seen; the others get 0.
void Softmax(std::span<float> scores, size_t first_visible, std::span<const uint8_t> kept) {
  float largest = -std::numeric_limits<float>::infinity();
  for (size_t t = first_visible; t < scores.size(); ++t) {
    if (Kept(kept, t)) {
      largest = std::max(largest, scores[t]);
    }
  }
  double sum = 0;
  for (size_t t = 0; t < scores.size(); ++t) {
    const bool seen = t >= first_visible && Kept(kept, t);
    scores[t] = seen ? std::exp(scores[t] - largest) : 0.0F;
    sum += static_cast<double>(scores[t]);
  }
  const float inverse = sum > 0 ? static_cast<float>(1.0 / sum) : 0.0F;
  for (float& score : scores) {
    score *= inverse;
  }
}

double Finite(double value) { return std::isfinite(value) ? value : 1e30; }

}  // namespace

AttentionError& AttentionError::operator+=(const AttentionError& other) {
  score_difference += other.score_difference;
  score_variance += other.score_variance;
  output_difference += other.output_difference;
  output_norm += other.output_norm;
  return *this;
}

HeadAttention ComputeHead(const ProbeShape& shape, int32_t kv_head, std::span<const float> queries,
                          std::span<const int32_t> first_visible, std::span<const Bf16> keys,
                          std::span<const Bf16> values, std::span<const uint8_t> kept) {
  const auto head_dim = static_cast<size_t>(shape.head_dim);
  const auto tokens = static_cast<size_t>(shape.num_tokens);
  const auto group = static_cast<size_t>(shape.num_q_heads / shape.num_kv_heads);
  const size_t rows = static_cast<size_t>(shape.num_queries) * group;
  KVIK_CHECK(keys.size() == tokens * head_dim && values.size() == keys.size());
  KVIK_CHECK(first_visible.size() == static_cast<size_t>(shape.num_queries));
  KVIK_CHECK(queries.size() == static_cast<size_t>(shape.num_queries) *
                                   static_cast<size_t>(shape.num_q_heads) * head_dim);
  HeadAttention out;
  out.scores.resize(rows * tokens);
  out.outputs.assign(rows * head_dim, 0.0F);
  const auto query = [&](size_t row) {
    const size_t head = static_cast<size_t>(kv_head) * group + row % group;
    return queries.data() +
           (row / group * static_cast<size_t>(shape.num_q_heads) + head) * head_dim;
  };
  std::vector<float> wide(head_dim);
  for (size_t t = 0; t < tokens; ++t) {
    Widen(keys.subspan(t * head_dim, head_dim), wide.data());
    for (size_t row = 0; row < rows; ++row) {
      out.scores[row * tokens + t] = shape.scale * Dot(query(row), wide.data(), head_dim);
    }
  }
  std::vector<float> weights = out.scores;
  for (size_t row = 0; row < rows; ++row) {
    Softmax(std::span(weights).subspan(row * tokens, tokens),
            static_cast<size_t>(first_visible[row / group]), kept);
  }
  for (size_t t = 0; t < tokens; ++t) {
    if (!Kept(kept, t)) {
      continue;
    }
    Widen(values.subspan(t * head_dim, head_dim), wide.data());
    for (size_t row = 0; row < rows; ++row) {
      const float weight = weights[row * tokens + t];
      float* output = out.outputs.data() + row * head_dim;
      for (size_t d = 0; d < head_dim; ++d) {
        output[d] += weight * wide[d];
      }
    }
  }
  return out;
}

AttentionError CompareHeads(const ProbeShape& shape, std::span<const int32_t> first_visible,
                            const HeadAttention& raw, const HeadAttention& coded,
                            std::span<const uint8_t> kept) {
  KVIK_CHECK(raw.scores.size() == coded.scores.size() &&
             raw.outputs.size() == coded.outputs.size());
  const auto tokens = static_cast<size_t>(shape.num_tokens);
  const auto group = static_cast<size_t>(shape.num_q_heads / shape.num_kv_heads);
  AttentionError error;
  for (size_t row = 0; row * tokens < raw.scores.size(); ++row) {
    const float* before = raw.scores.data() + row * tokens;
    const float* after = coded.scores.data() + row * tokens;
    double count = 0;
    double sum = 0, squares = 0, difference = 0, difference_squares = 0;
    for (auto t = static_cast<size_t>(first_visible[row / group]); t < tokens; ++t) {
      if (Kept(kept, t)) {
        const auto score = static_cast<double>(before[t]);
        const double change = static_cast<double>(after[t]) - score;
        count += 1;
        sum += score;
        squares += score * score;
        difference += change;
        difference_squares += change * change;
      }
    }
    if (count > 0) {
      error.score_variance += std::max(0.0, squares - sum * sum / count);
      error.score_difference +=
          Finite(std::max(0.0, difference_squares - difference * difference / count));
    }
  }
  for (size_t i = 0; i < raw.outputs.size(); ++i) {
    const auto output = static_cast<double>(raw.outputs[i]);
    const double change = static_cast<double>(coded.outputs[i]) - output;
    error.output_difference += Finite(change * change);
    error.output_norm += output * output;
  }
  return error;
}

}  // namespace kvik::eval
