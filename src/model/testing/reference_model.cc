// SPDX-License-Identifier: Apache-2.0
#include "model/testing/reference_model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "model/rope.h"
#include "model/weights.h"

namespace kvik::model::testing {
namespace {

using Row = std::vector<double>;

void NormInPlace(std::span<double> x, const std::vector<float>& weight, double eps) {
  double squares = 0;
  for (const double v : x) {
    squares += v * v;
  }
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] *= scale * static_cast<double>(weight[i]);
  }
}

class Reference {
 public:
  explicit Reference(const ModelSource& source)
      : source_(source),
        config_(source.config()),
        rope_(config_.rope, config_.head_dim),
        head_dim_(static_cast<size_t>(config_.head_dim)) {}

  std::vector<Row> Run(std::span<const TokenId> tokens) {
    const auto hidden = static_cast<size_t>(config_.hidden_size);
    const std::vector<float>& embedding = Weight("token_embd.weight");
    std::vector<Row> x;
    for (const TokenId token : tokens) {
      const float* row = embedding.data() + static_cast<size_t>(token) * hidden;
      x.emplace_back(row, row + hidden);
    }
    for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
      Layer(layer, x);
    }
    const std::vector<float>& norm = Weight("output_norm.weight");
    for (Row& row : x) {
      NormInPlace(row, norm, static_cast<double>(config_.rms_norm_eps));
      row = Multiply(config_.tied_embeddings ? "token_embd" : "output", row);
    }
    return x;
  }

 private:
  // A weight in file order; kept, for every token asks again.
  const std::vector<float>& Weight(const std::string& name) {
    const auto known = weights_.find(name);
    if (known != weights_.end()) {
      return known->second;
    }
    WeightTensor weight = source_.Weight(name);
    weight.interleaved_head_dim = 0;
    return weights_.emplace(name, DequantizeWeight(weight)).first->second;
  }

  // W [n, k] times x [k], plus the bias if the model has it.
  Row Multiply(const std::string& name, const Row& x) {
    const std::vector<float>& w = Weight(name + ".weight");
    Row out(w.size() / x.size());
    for (size_t i = 0; i < out.size(); ++i) {
      for (size_t j = 0; j < x.size(); ++j) {
        out[i] += static_cast<double>(w[i * x.size() + j]) * x[j];
      }
    }
    if (source_.weights().contains(name + ".bias")) {
      const std::vector<float>& bias = Weight(name + ".bias");
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] += static_cast<double>(bias[i]);
      }
    }
    return out;
  }

  void Layer(int32_t layer, std::vector<Row>& x) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    const auto eps = static_cast<double>(config_.rms_norm_eps);
    const std::vector<float>& attn_norm = Weight(prefix + "attn_norm.weight");
    const std::vector<float>& ffn_norm = Weight(prefix + "ffn_norm.weight");
    const bool interleaved = source_.Weight(prefix + "attn_q.weight").interleaved_head_dim != 0;
    std::vector<Row> q;
    std::vector<Row> k;
    std::vector<Row> v;
    for (size_t t = 0; t < x.size(); ++t) {
      Row normed = x[t];
      NormInPlace(normed, attn_norm, eps);
      q.push_back(Multiply(prefix + "attn_q", normed));
      k.push_back(Multiply(prefix + "attn_k", normed));
      v.push_back(Multiply(prefix + "attn_v", normed));
      HeadNorm(prefix + "attn_q_norm.weight", q.back());
      HeadNorm(prefix + "attn_k_norm.weight", k.back());
      Rotate(static_cast<double>(t), interleaved, q.back());
      Rotate(static_cast<double>(t), interleaved, k.back());
    }
    const bool windowed =
        config_.sliding_window_tokens > 0 && layer >= config_.sliding_window_first_layer;
    for (size_t t = 0; t < x.size(); ++t) {
      const auto window = static_cast<size_t>(config_.sliding_window_tokens);
      const size_t first = windowed && t + 1 > window ? t + 1 - window : 0;
      AddTo(Multiply(prefix + "attn_output", Attend(q[t], k, v, first, t)), x[t]);
      Row normed = x[t];
      NormInPlace(normed, ffn_norm, eps);
      Row gate = Multiply(prefix + "ffn_gate", normed);
      const Row up = Multiply(prefix + "ffn_up", normed);
      for (size_t i = 0; i < gate.size(); ++i) {
        gate[i] = gate[i] / (1.0 + std::exp(-gate[i])) * up[i];
      }
      AddTo(Multiply(prefix + "ffn_down", gate), x[t]);
    }
  }

  static void AddTo(const Row& branch, Row& x) {
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] += branch[i];
    }
  }

  void HeadNorm(const std::string& name, Row& x) {
    if (!source_.weights().contains(name)) {
      return;
    }
    const std::vector<float>& weight = Weight(name);
    for (size_t head = 0; head < x.size(); head += head_dim_) {
      NormInPlace(std::span(x).subspan(head, head_dim_), weight,
                  static_cast<double>(config_.rms_norm_eps));
    }
  }

  void Rotate(double position, bool interleaved, Row& x) const {
    const size_t half = head_dim_ / 2;
    for (size_t head = 0; head < x.size(); head += head_dim_) {
      for (size_t i = 0; i < half; ++i) {
        const double angle = position * rope_.frequencies()[i];
        double& a = x[head + (interleaved ? 2 * i : i)];
        double& b = x[head + (interleaved ? 2 * i + 1 : i + half)];
        const double cos = std::cos(angle) * rope_.scale();
        const double sin = std::sin(angle) * rope_.scale();
        const double rotated = a * cos - b * sin;
        b = b * cos + a * sin;
        a = rotated;
      }
    }
  }

  // Softmax over positions [first, last], head by head.
  [[nodiscard]] Row Attend(const Row& q, const std::vector<Row>& k, const std::vector<Row>& v,
                           size_t first, size_t last) const {
    const auto group = static_cast<size_t>(config_.num_heads / config_.num_kv_heads);
    Row out(q.size());
    for (size_t head = 0; head < static_cast<size_t>(config_.num_heads); ++head) {
      const size_t kv = head / group * head_dim_;
      Row weights;
      double max = -1e300;
      for (size_t t = first; t <= last; ++t) {
        double score = 0;
        for (size_t d = 0; d < head_dim_; ++d) {
          score += q[head * head_dim_ + d] * k[t][kv + d];
        }
        weights.push_back(score / std::sqrt(static_cast<double>(head_dim_)));
        max = std::max(max, weights.back());
      }
      double sum = 0;
      for (double& weight : weights) {
        weight = std::exp(weight - max);
        sum += weight;
      }
      for (size_t t = first; t <= last; ++t) {
        for (size_t d = 0; d < head_dim_; ++d) {
          out[head * head_dim_ + d] += weights[t - first] / sum * v[t][kv + d];
        }
      }
    }
    return out;
  }

  const ModelSource& source_;
  const ModelConfig& config_;
  RopeTable rope_;
  size_t head_dim_;
  std::map<std::string, std::vector<float>> weights_;
};

}  // namespace

std::vector<std::vector<double>> ReferenceLogits(const ModelSource& source,
                                                 std::span<const TokenId> tokens) {
  return Reference(source).Run(tokens);
}

}  // namespace kvik::model::testing
