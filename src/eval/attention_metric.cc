// SPDX-License-Identifier: Apache-2.0
#include "eval/attention_metric.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/rng.h"

namespace kvik::eval {
namespace {

double Dot(const float* a, const float* b, size_t n) {
  float sums[8] = {};
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (size_t lane = 0; lane < 8; ++lane) {
      sums[lane] += a[i + lane] * b[i + lane];
    }
  }
  double total = 0;
  for (const float sum : sums) {
    total += static_cast<double>(sum);
  }
  for (; i < n; ++i) {
    total += static_cast<double>(a[i] * b[i]);
  }
  return total;
}

// matrix += weight x x', lower triangle.
void AddOuter(std::span<const float> x, double weight, std::vector<double>& matrix) {
  const size_t n = x.size();
  for (size_t i = 0; i < n; ++i) {
    const double scaled = weight * static_cast<double>(x[i]);
    double* const row = matrix.data() + i * n;
    for (size_t j = 0; j <= i; ++j) {
      row[j] += scaled * static_cast<double>(x[j]);
    }
  }
}

void Symmetrise(std::vector<double>& matrix, size_t n, double scale) {
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      matrix[i * n + j] *= scale;
      matrix[j * n + i] = matrix[i * n + j];
    }
  }
}

// Keys and values of one kv head over a sequence, and one query head's attention to them.
class HeadView {
 public:
  HeadView(const CalibrationKv& kv, const CalibrationSequence& sequence, int32_t layer,
           int32_t kv_head)
      : head_dim_(static_cast<size_t>(kv.facts.head_dim)),
        scale_(1.0 / std::sqrt(static_cast<double>(head_dim_))),
        metric_(std::span(kv.output_metric[static_cast<size_t>(layer)])
                    .subspan(static_cast<size_t>(kv_head) * head_dim_ * head_dim_,
                             head_dim_ * head_dim_)),
        output_(head_dim_),
        moved_(head_dim_) {
    const auto tokens = static_cast<size_t>(sequence.num_tokens);
    const size_t page = tokens * head_dim_;
    const size_t offset = static_cast<size_t>(kv_head) * page;
    keys_.resize(page);
    values_.resize(page);
    const std::span<const Bf16> keys = sequence.Rows(layer, kv::KvPart::kKey);
    const std::span<const Bf16> values = sequence.Rows(layer, kv::KvPart::kValue);
    for (size_t i = 0; i < page; ++i) {
      keys_[i] = ToFloat(keys[offset + i]);
      values_[i] = ToFloat(values[offset + i]);
    }
    for (size_t t = 0; t < tokens; ++t) {
      value_lengths_.push_back(SquaredLength(values_.data() + t * head_dim_));
    }
    weights_.resize(tokens);
  }

  [[nodiscard]] double scale() const { return scale_; }

  // Fills weights() for a query at `position`, which sees [0, position], `seen` of them alone.
  template <typename Seen>
  void Attend(const float* query, int32_t position, const Seen& seen) {
    const auto count = static_cast<size_t>(position) + 1;
    double largest = -INFINITY;
    for (size_t t = 0; t < count; ++t) {
      weights_[t] = seen(static_cast<int32_t>(t))
                        ? scale_ * Dot(query, keys_.data() + t * head_dim_, head_dim_)
                        : -INFINITY;
      largest = std::max(largest, weights_[t]);
    }
    double sum = 0;
    for (size_t t = 0; t < count; ++t) {
      weights_[t] = std::exp(weights_[t] - largest);
      sum += weights_[t];
    }
    std::fill(output_.begin(), output_.end(), 0.0F);
    for (size_t t = 0; t < count; ++t) {
      weights_[t] /= sum;
      const auto weight = static_cast<float>(weights_[t]);
      const float* const value = values_.data() + t * head_dim_;
      for (size_t c = 0; c < head_dim_; ++c) {
        output_[c] += weight * value[c];
      }
    }
    moved_ = Moved(output_.data());
    output_length_ = Dot(moved_.data(), output_.data(), head_dim_);
  }

  // After Attend: softmax over what was seen.
  [[nodiscard]] std::span<const double> weights() const { return weights_; }
  [[nodiscard]] std::span<const float> output() const { return output_; }
  [[nodiscard]] double output_length() const { return output_length_; }  // squared, projected

  // Squared length of W (v_t - o).
  [[nodiscard]] double ValueDistance(size_t t) const {
    const double cross = Dot(moved_.data(), values_.data() + t * head_dim_, head_dim_);
    return std::max(0.0, value_lengths_[t] - 2 * cross + output_length_);
  }
  // Squared length of W x.
  [[nodiscard]] double SquaredLength(const float* x) const {
    return Dot(Moved(x).data(), x, head_dim_);
  }

 private:
  [[nodiscard]] std::vector<float> Moved(const float* x) const {
    std::vector<float> y(head_dim_);
    for (size_t i = 0; i < head_dim_; ++i) {
      y[i] = static_cast<float>(Dot(metric_.data() + i * head_dim_, x, head_dim_));
    }
    return y;
  }

  size_t head_dim_;
  double scale_;
  std::span<const float> metric_;
  std::vector<float> keys_;
  std::vector<float> values_;
  std::vector<double> value_lengths_;  // squared, projected
  std::vector<double> weights_;
  std::vector<float> output_;
  std::vector<float> moved_;  // metric times output
  double output_length_ = 0;
};

// Rotations of every position of a sequence, [tokens, head_dim / 2].
struct Rotations {
  std::vector<float> cosines;
  std::vector<float> sines;
};

Rotations MakeRotations(const codec::ModelFacts& facts, int32_t tokens) {
  Rotations rotations;
  for (int32_t t = 0; t < tokens; ++t) {
    for (const double frequency : facts.rope_frequencies) {
      rotations.cosines.push_back(static_cast<float>(std::cos(frequency * t) * facts.rope_scale));
      rotations.sines.push_back(static_cast<float>(std::sin(frequency * t) * facts.rope_scale));
    }
  }
  return rotations;
}

// What a rotated query reads of an unrotated key at position t.
void Unrotate(const float* query, const Rotations& rotations, size_t t, std::span<float> out) {
  const size_t half = out.size() / 2;
  const float* const cosines = rotations.cosines.data() + t * half;
  const float* const sines = rotations.sines.data() + t * half;
  for (size_t c = 0; c < half; ++c) {
    out[c] = query[c] * cosines[c] + query[c + half] * sines[c];
    out[c + half] = query[c + half] * cosines[c] - query[c] * sines[c];
  }
}

// Calls fn(query head's vector, position) for every kept query of the group of a kv head.
template <typename Fn>
void ForEachQuery(const CalibrationKv& kv, const CalibrationSequence& sequence, int32_t layer,
                  int32_t kv_head, const Fn& fn) {
  const auto head_dim = static_cast<size_t>(kv.facts.head_dim);
  const auto q_heads = static_cast<size_t>(kv.num_q_heads);
  const size_t group = q_heads / static_cast<size_t>(kv.facts.num_kv_heads);
  const std::vector<float>& queries = sequence.queries[static_cast<size_t>(layer)];
  for (size_t i = 0; i < sequence.query_positions.size(); ++i) {
    for (size_t member = 0; member < group; ++member) {
      const size_t head = static_cast<size_t>(kv_head) * group + member;
      fn(queries.data() + (i * q_heads + head) * head_dim, sequence.query_positions[i]);
    }
  }
}

class MetricOfHead {
 public:
  MetricOfHead(const CalibrationKv& kv, const AttentionMetricOptions& options, int32_t layer,
               int32_t kv_head, std::span<const Rotations> rotations)
      : kv_(kv),
        options_(options),
        layer_(layer),
        kv_head_(kv_head),
        rotations_(rotations),
        rng_(options.seed,
             static_cast<uint64_t>(layer) * static_cast<uint64_t>(kv.facts.num_kv_heads) +
                 static_cast<uint64_t>(kv_head)),
        unrotated_(static_cast<size_t>(kv.facts.head_dim)) {
    const size_t values = unrotated_.size() * unrotated_.size();
    metric_.rotated_key.resize(values);
    if (!rotations.empty()) {
      metric_.unrotated_key.resize(values);
    }
  }

  HeadMetric Compute() {
    size_t queries = 0;
    for (size_t i = 0; i < kv_.sequences.size(); ++i) {
      HeadView view(kv_, kv_.sequences[i], layer_, kv_head_);
      ForEachQuery(
          kv_, kv_.sequences[i], layer_, kv_head_,
          [&](const float* query, int32_t position) { AddQuery(view, query, position, i); });
      queries += kv_.sequences[i].query_positions.size();
    }
    const size_t n = unrotated_.size();
    const double scale = 1.0 / static_cast<double>(std::max<size_t>(queries, 1));
    Symmetrise(metric_.rotated_key, n, scale);
    if (!metric_.unrotated_key.empty()) {
      Symmetrise(metric_.unrotated_key, n, scale);
    }
    const std::span<const float> output =
        std::span(kv_.output_metric[static_cast<size_t>(layer_)])
            .subspan(static_cast<size_t>(kv_head_) * n * n, n * n);
    for (const float value : output) {
      metric_.value.push_back(static_cast<double>(value) * squared_weights_ * scale);
    }
    return std::move(metric_);
  }

 private:
  void AddQuery(HeadView& view, const float* query, int32_t position, size_t sequence) {
    view.Attend(query, position, [](int32_t /*t*/) { return true; });
    const auto first = static_cast<size_t>(options_.sink_tokens);
    const auto end = static_cast<size_t>(std::max(0, position + 1 - options_.near_tokens));
    costs_.clear();
    double total = 0;
    for (size_t t = first; t < end; ++t) {
      const double squared = view.weights()[t] * view.weights()[t];
      squared_weights_ += squared;
      total += squared * view.ValueDistance(t);
      costs_.push_back(total);
    }
    if (!(total > 0)) {
      return;
    }
    // Systematic sampling: every sample stands for an equal part of the total.
    const double step = total / options_.samples_of_query;
    double at = step * rng_.Uniform();
    size_t t = 0;
    for (int32_t i = 0; i < options_.samples_of_query; ++i, at += step) {
      while (t + 1 < costs_.size() && costs_[t] < at) {
        ++t;
      }
      const double weight = step * view.scale() * view.scale();
      AddOuter({query, unrotated_.size()}, weight, metric_.rotated_key);
      if (!metric_.unrotated_key.empty()) {
        Unrotate(query, rotations_[sequence], first + t, unrotated_);
        AddOuter(unrotated_, weight, metric_.unrotated_key);
      }
    }
  }

  const CalibrationKv& kv_;
  const AttentionMetricOptions& options_;
  int32_t layer_;
  int32_t kv_head_;
  std::span<const Rotations> rotations_;
  Rng rng_;
  std::vector<float> unrotated_;
  std::vector<double> costs_;  // cumulative, from the first token that counts
  double squared_weights_ = 0;
  HeadMetric metric_;
};

}  // namespace

std::vector<HeadMetric> ComputeAttentionMetric(const CalibrationKv& kv,
                                               const AttentionMetricOptions& options,
                                               ThreadPool& pool,
                                               const std::function<void(size_t heads)>& on_head) {
  std::vector<Rotations> rotations;
  if (!kv.facts.rope_frequencies.empty()) {
    for (const CalibrationSequence& sequence : kv.sequences) {
      rotations.push_back(MakeRotations(kv.facts, sequence.num_tokens));
    }
  }
  const auto heads = static_cast<size_t>(kv.facts.num_kv_heads);
  std::vector<HeadMetric> metrics(static_cast<size_t>(kv.facts.num_layers) * heads);
  // In pieces, so that the caller's thread can tell how far it is.
  const size_t step = static_cast<size_t>(pool.num_threads()) * 2;
  for (size_t first = 0; first < metrics.size(); first += step) {
    const size_t count = std::min(step, metrics.size() - first);
    pool.ParallelFor(count, [&](size_t i, int /*thread*/) {
      const size_t at = first + i;
      metrics[at] = MetricOfHead(kv, options, static_cast<int32_t>(at / heads),
                                 static_cast<int32_t>(at % heads), rotations)
                        .Compute();
    });
    if (on_head) {
      on_head(first + count);
    }
  }
  return metrics;
}

HeadScores ComputeHeadScores(const CalibrationKv& kv, const CalibrationSequence& sequence,
                             const HeadScoreOptions& options, ThreadPool& pool) {
  const auto heads = static_cast<size_t>(kv.facts.num_kv_heads);
  const auto head_dim = static_cast<size_t>(kv.facts.head_dim);
  const size_t cells = static_cast<size_t>(kv.facts.num_layers) * heads;
  HeadScores scores{std::vector<double>(cells), std::vector<double>(cells)};
  pool.ParallelFor(cells, [&](size_t at, int /*thread*/) {
    const auto layer = static_cast<int32_t>(at / heads);
    const auto head = static_cast<int32_t>(at % heads);
    HeadView view(kv, sequence, layer, head);
    double mass = 0;
    double moved = 0;
    double length = 0;
    size_t queries = 0;
    std::vector<float> difference(head_dim);
    ForEachQuery(kv, sequence, layer, head, [&](const float* query, int32_t position) {
      const int32_t recent = position + 1 - options.recent_tokens;
      if (recent <= options.sink_tokens) {
        return;  // it sees everything as it is
      }
      ++queries;
      view.Attend(query, position, [](int32_t /*t*/) { return true; });
      for (int32_t t = options.sink_tokens; t < recent; ++t) {
        mass += view.weights()[static_cast<size_t>(t)];
      }
      length += view.output_length();
      std::copy(view.output().begin(), view.output().end(), difference.begin());
      view.Attend(query, position,
                  [&](int32_t t) { return t < options.sink_tokens || t >= recent; });
      for (size_t c = 0; c < head_dim; ++c) {
        difference[c] -= view.output()[c];
      }
      moved += view.SquaredLength(difference.data());
    });
    scores.attention[at] = queries > 0 ? mass / static_cast<double>(queries) : 0;
    scores.output[at] = length > 0 ? moved / length : 0;
  });
  return scores;
}

}  // namespace kvik::eval
