// SPDX-License-Identifier: Apache-2.0
#include "eval/attention_probe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/rng.h"

namespace kvik::eval {
namespace {

struct Case {
  ProbeShape shape{.num_queries = 2,
                   .num_q_heads = 6,
                   .num_kv_heads = 2,
                   .head_dim = 20,
                   .num_tokens = 33,
                   .scale = 0.3F};
  std::vector<float> queries;
  std::vector<Bf16> keys, values;
  std::vector<int32_t> visible = {0, 4};

  explicit Case(uint64_t seed) {
    Rng rng(seed);
    const auto random = [&] { return static_cast<float>(rng.Uniform() * 2 - 1); };
    for (int i = 0; i < 2 * 6 * 20; ++i) {
      queries.push_back(random());
    }
    for (int i = 0; i < 33 * 20; ++i) {
      keys.push_back(ToBf16(random()));
      values.push_back(ToBf16(random()));
    }
  }
};

TEST(AttentionProbe, IsAttention) {
  const Case c(1);
  std::vector<uint8_t> kept(33, 1);
  kept[7] = kept[32] = 0;
  for (const bool drops : {false, true}) {
    const std::vector<uint8_t> mask = drops ? kept : std::vector<uint8_t>();
    const HeadAttention head =
        ComputeHead(c.shape, 1, c.queries, c.visible, c.keys, c.values, mask);
    for (size_t query = 0; query < 2; ++query) {
      for (size_t in_group = 0; in_group < 3; ++in_group) {
        const float* q = c.queries.data() + (query * 6 + 3 + in_group) * 20;
        std::vector<double> weight(33, 0), output(20, 0);
        double sum = 0;
        for (size_t t = 0; t < 33; ++t) {
          double dot = 0;
          for (size_t d = 0; d < 20; ++d) {
            dot += static_cast<double>(q[d]) * static_cast<double>(ToFloat(c.keys[t * 20 + d]));
          }
          EXPECT_NEAR(head.scores[(query * 3 + in_group) * 33 + t], 0.3 * dot, 1e-5);
          if (t >= static_cast<size_t>(c.visible[query]) && !(drops && kept[t] == 0)) {
            weight[t] = std::exp(0.3 * dot);
            sum += weight[t];
          }
        }
        for (size_t t = 0; t < 33; ++t) {
          for (size_t d = 0; d < 20; ++d) {
            output[d] += weight[t] / sum * static_cast<double>(ToFloat(c.values[t * 20 + d]));
          }
        }
        for (size_t d = 0; d < 20; ++d) {
          EXPECT_NEAR(head.outputs[(query * 3 + in_group) * 20 + d], output[d], 1e-5);
        }
      }
    }
  }
}

// Softmax does not see what is added to all scores of a query, and neither does the error.
TEST(AttentionProbe, OnlyWhatSoftmaxSeesIsAnError) {
  Case c(2);
  const HeadAttention raw = ComputeHead(c.shape, 0, c.queries, c.visible, c.keys, c.values, {});
  EXPECT_EQ(CompareHeads(c.shape, c.visible, raw, raw, {}).score_difference, 0);
  HeadAttention shifted = raw;
  for (float& score : shifted.scores) {
    score += 4;
  }
  const AttentionError none = CompareHeads(c.shape, c.visible, raw, shifted, {});
  EXPECT_LT(none.score_difference, 1e-6 * none.score_variance);
  EXPECT_EQ(none.output_difference, 0);
  EXPECT_GT(none.output_norm, 0);

  for (size_t i = 0; i < 20; ++i) {
    c.keys[5 * 20 + i] = ToBf16(9);
    c.values[9 * 20 + i] = Bf16{0};
  }
  const HeadAttention coded = ComputeHead(c.shape, 0, c.queries, c.visible, c.keys, c.values, {});
  const AttentionError error = CompareHeads(c.shape, c.visible, raw, coded, {});
  EXPECT_GT(error.score_difference, 0);
  EXPECT_GT(error.output_difference, 0);
  // Twice the difference, four times the square.
  HeadAttention twice = raw;
  for (size_t i = 0; i < raw.scores.size(); ++i) {
    twice.scores[i] += 2 * (coded.scores[i] - raw.scores[i]);
  }
  EXPECT_NEAR(CompareHeads(c.shape, c.visible, raw, twice, {}).score_difference,
              4 * error.score_difference, 1e-3 * error.score_difference);
}

}  // namespace
}  // namespace kvik::eval
