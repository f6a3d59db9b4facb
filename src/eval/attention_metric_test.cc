// SPDX-License-Identifier: Apache-2.0
#include "eval/attention_metric.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"

namespace kvik::eval {
namespace {

constexpr uint64_t kSeed = 17;
constexpr size_t kDim = 8;
constexpr int32_t kTokens = 24;
constexpr int32_t kGroup = 2;  // query heads of the one kv head

double Draw(Rng& rng) { return rng.Uniform() * 2 - 1; }

// One layer, one kv head, random everything; all queries stand at the end.
CalibrationKv MakeKv(Rng& rng, bool rotated) {
  CalibrationKv kv;
  kv.facts.num_layers = 1;
  kv.facts.num_kv_heads = 1;
  kv.facts.head_dim = kDim;
  if (rotated) {
    kv.facts.rope_frequencies = {1.0, 0.3, 0.1, 0.03};
  }
  kv.num_q_heads = kGroup;
  std::vector<double> w(kDim * kDim);
  for (double& value : w) {
    value = Draw(rng);
  }
  std::vector<float> metric(kDim * kDim);
  for (size_t i = 0; i < kDim; ++i) {
    for (size_t j = 0; j < kDim; ++j) {
      double sum = 0;
      for (size_t k = 0; k < kDim; ++k) {
        sum += w[k * kDim + i] * w[k * kDim + j];
      }
      metric[i * kDim + j] = static_cast<float>(sum);
    }
  }
  kv.output_metric = {metric};
  CalibrationSequence sequence;
  sequence.num_tokens = kTokens;
  for (int part = 0; part < 2; ++part) {
    std::vector<Bf16>& rows = sequence.rows.emplace_back();
    for (size_t i = 0; i < kTokens * kDim; ++i) {
      rows.push_back(ToBf16(static_cast<float>(Draw(rng))));
    }
  }
  sequence.query_positions = {kTokens - 1};
  sequence.queries.resize(1);
  for (size_t i = 0; i < kGroup * kDim; ++i) {
    sequence.queries[0].push_back(static_cast<float>(3 * Draw(rng)));
  }
  kv.sequences.push_back(std::move(sequence));
  return kv;
}

std::vector<double> Rows(const CalibrationKv& kv, kv::KvPart part) {
  std::vector<double> rows;
  for (const Bf16 value : kv.sequences[0].Rows(0, part)) {
    rows.push_back(static_cast<double>(ToFloat(value)));
  }
  return rows;
}

std::vector<double> Output(const CalibrationKv& kv, size_t member, const std::vector<double>& keys,
                           const std::vector<double>& values) {
  std::vector<double> weights;
  double sum = 0;
  for (size_t t = 0; t < kTokens; ++t) {
    double score = 0;
    for (size_t c = 0; c < kDim; ++c) {
      score +=
          static_cast<double>(kv.sequences[0].queries[0][member * kDim + c]) * keys[t * kDim + c];
    }
    weights.push_back(std::exp(score / std::sqrt(static_cast<double>(kDim))));
    sum += weights.back();
  }
  std::vector<double> output(kDim);
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t c = 0; c < kDim; ++c) {
      output[c] += weights[t] / sum * values[t * kDim + c];
    }
  }
  return output;
}

double Form(const std::vector<double>& matrix, const double* x) {
  double sum = 0;
  for (size_t i = 0; i < kDim; ++i) {
    for (size_t j = 0; j < kDim; ++j) {
      sum += x[i] * matrix[i * kDim + j] * x[j];
    }
  }
  return sum;
}

// How far the outputs of the group move, squared, in the metric of the output.
double Moved(const CalibrationKv& kv, const std::vector<double>& keys,
             const std::vector<double>& values) {
  const std::vector<double> metric(kv.output_metric[0].begin(), kv.output_metric[0].end());
  double total = 0;
  for (size_t member = 0; member < kGroup; ++member) {
    std::vector<double> difference =
        Output(kv, member, Rows(kv, kv::KvPart::kKey), Rows(kv, kv::KvPart::kValue));
    const std::vector<double> output = Output(kv, member, keys, values);
    for (size_t c = 0; c < kDim; ++c) {
      difference[c] -= output[c];
    }
    total += Form(metric, difference.data());
  }
  return total;
}

void Rotate(const CalibrationKv& kv, size_t position, double* x) {
  for (size_t c = 0; c < kDim / 2; ++c) {
    const double angle = kv.facts.rope_frequencies[c] * static_cast<double>(position);
    const double a = x[c];
    const double b = x[c + kDim / 2];
    x[c] = a * std::cos(angle) - b * std::sin(angle);
    x[c + kDim / 2] = b * std::cos(angle) + a * std::sin(angle);
  }
}

enum class Where { kRotatedKey, kUnrotatedKey, kValue };

// Errors on all tokens at once, the same direction for each with random signs: what the metric
// says against what happens, averaged over the signs.
void ExpectMetricToPredict(Where where, int32_t sinks, int32_t near) {
  Rng rng(kSeed);
  const CalibrationKv kv = MakeKv(rng, where == Where::kUnrotatedKey);
  ThreadPool pool(1);
  AttentionMetricOptions options;
  options.sink_tokens = sinks;
  options.near_tokens = near;
  options.samples_of_query = 5000;
  const std::vector<HeadMetric> metrics = ComputeAttentionMetric(kv, options, pool, nullptr);
  ASSERT_EQ(metrics.size(), 1U);
  const std::vector<double>& metric = where == Where::kValue        ? metrics[0].value
                                      : where == Where::kRotatedKey ? metrics[0].rotated_key
                                                                    : metrics[0].unrotated_key;
  for (int direction = 0; direction < 3; ++direction) {
    std::vector<double> error(kDim);
    for (double& value : error) {
      value = 1e-3 * Draw(rng);
    }
    double happened = 0;
    // Contributions of tokens add up when their signs are independent: one token at a time.
    for (size_t t = static_cast<size_t>(sinks); t < static_cast<size_t>(kTokens - near); ++t) {
      std::vector<double> keys = Rows(kv, kv::KvPart::kKey);
      std::vector<double> values = Rows(kv, kv::KvPart::kValue);
      std::vector<double> turned = error;
      if (where == Where::kUnrotatedKey) {
        Rotate(kv, t, turned.data());
      }
      std::vector<double>& rows = where == Where::kValue ? values : keys;
      for (size_t c = 0; c < kDim; ++c) {
        rows[t * kDim + c] += turned[c];
      }
      happened += Moved(kv, keys, values);
    }
    EXPECT_NEAR(Form(metric, error.data()) / happened, 1.0, 0.02) << "seed " << kSeed;
  }
}

TEST(AttentionMetric, PredictsWhatErrorsOfValuesDo) {
  ExpectMetricToPredict(Where::kValue, 0, 0);
  ExpectMetricToPredict(Where::kValue, 4, 6);
}

TEST(AttentionMetric, PredictsWhatErrorsOfKeysDo) {
  ExpectMetricToPredict(Where::kRotatedKey, 0, 0);
  ExpectMetricToPredict(Where::kRotatedKey, 4, 6);
}

TEST(AttentionMetric, PredictsWhatErrorsBeforeTheRotationDo) {
  ExpectMetricToPredict(Where::kUnrotatedKey, 0, 0);
  ExpectMetricToPredict(Where::kUnrotatedKey, 2, 3);
}

TEST(AttentionMetric, AHeadThatLooksBackScoresHigh) {
  Rng rng(kSeed, 1);
  for (const bool looks_back : {false, true}) {
    CalibrationKv kv = MakeKv(rng, false);
    CalibrationSequence& sequence = kv.sequences[0];
    // Every query finds one key alone.
    std::fill(sequence.rows[0].begin(), sequence.rows[0].end(), ToBf16(0));
    std::fill(sequence.queries[0].begin(), sequence.queries[0].end(), 10.0F);
    const size_t found = looks_back ? 10 : static_cast<size_t>(kTokens) - 2;
    for (size_t c = 0; c < kDim; ++c) {
      sequence.rows[0][found * kDim + c] = ToBf16(2.0F);
    }
    ThreadPool pool(1);
    const HeadScores scores =
        ComputeHeadScores(kv, sequence, {.sink_tokens = 2, .recent_tokens = 4}, pool);
    ASSERT_EQ(scores.attention.size(), 1U);
    if (looks_back) {
      EXPECT_GT(scores.attention[0], 0.99);
      EXPECT_GT(scores.output[0], 0.1);
    } else {
      EXPECT_LT(scores.attention[0], 0.01);
      EXPECT_LT(scores.output[0], 0.01);
    }
  }
}

TEST(AttentionMetric, AShortTextSaysNothingOfHeads) {
  Rng rng(kSeed, 2);
  const CalibrationKv kv = MakeKv(rng, false);
  ThreadPool pool(1);
  const HeadScores scores = ComputeHeadScores(kv, kv.sequences[0], {}, pool);
  EXPECT_EQ(scores.attention[0], 0);
  EXPECT_EQ(scores.output[0], 0);
}

}  // namespace
}  // namespace kvik::eval
