// SPDX-License-Identifier: Apache-2.0
#include "eval/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

#include "base/aligned_buffer.h"
#include "base/rng.h"
#include "eval/kv_rows.h"
#include "eval/logits.h"

namespace kvik::eval {
namespace {

double Gaussian(Rng& rng) {
  const double radius = std::sqrt(-2 * std::log(1 - rng.Uniform()));
  return radius * std::cos(2 * std::numbers::pi * rng.Uniform());
}

// One prompt with its raw run, in an arena of its own.
class NoisyPrompt {
 public:
  static Result<NoisyPrompt> Create(model::Model& model, const CalibrationSequence& sequence,
                                    const SensitivityOptions& options) {
    const kv::KvGeometry& geometry = model.kv_geometry();
    NoisyPrompt prompt(model, sequence);
    prompt.judged_ = std::min({options.judged_tokens, sequence.num_tokens / 2,
                               model.options().max_logit_rows, model.options().max_batch_rows});
    prompt.tokens_ = std::min(options.prompt_tokens, sequence.num_tokens - prompt.judged_);
    const auto block = geometry.block_size_tokens;
    prompt.table_.resize(
        static_cast<size_t>((prompt.tokens_ + prompt.judged_ + block - 1) / block));
    std::iota(prompt.table_.begin(), prompt.table_.end(), 0);
    KVIK_ASSIGN(prompt.arena_,
                AlignedBuffer::Create(prompt.table_.size() * geometry.bytes_per_block()));
    for (int32_t layer = 0; layer < geometry.num_layers; ++layer) {
      for (const kv::KvPart part : {kv::KvPart::kKey, kv::KvPart::kValue}) {
        prompt.Write(layer, part, prompt.RawRows(layer, part));
      }
    }
    const model::LogitsView logits = prompt.Judge();
    prompt.raw_logits_.assign(logits.data,
                              logits.data + static_cast<size_t>(logits.num_rows) *
                                                static_cast<size_t>(logits.vocab_size));
    prompt.probabilities_.resize(prompt.raw_logits_.size());
    for (int32_t row = 0; row < logits.num_rows; ++row) {
      prompt.described_.push_back(DescribeRow(
          prompt.Row(prompt.raw_logits_, row),
          std::span(prompt.probabilities_)
              .subspan(static_cast<size_t>(row) * prompt.Vocabulary(), prompt.Vocabulary())));
    }
    return prompt;
  }

  // Mean divergence with noise on one layer's part.
  double Divergence(int32_t layer, kv::KvPart part, const NoiseShape& shape,
                    const codec::ModelFacts& facts, int32_t sink_tokens, Rng rng) {
    const std::vector<Bf16> raw = RawRows(layer, part);
    std::vector<Bf16> noisy = raw;
    const auto head_dim = static_cast<size_t>(facts.head_dim);
    const auto tokens = static_cast<size_t>(tokens_);
    const double deviation = shape.deviations[static_cast<size_t>(layer)];
    std::vector<double> coefficients(head_dim);
    std::vector<double> error(head_dim);
    for (size_t head = 0; head < static_cast<size_t>(facts.num_kv_heads); ++head) {
      const WeightedBasis& basis =
          shape.bases[static_cast<size_t>(layer) * static_cast<size_t>(facts.num_kv_heads) + head];
      for (auto t = static_cast<size_t>(sink_tokens); t < tokens; ++t) {
        for (double& coefficient : coefficients) {
          coefficient = deviation * Gaussian(rng);
        }
        for (size_t i = 0; i < head_dim; ++i) {
          error[i] =
              std::inner_product(coefficients.begin(), coefficients.end(),
                                 basis.inverse.begin() + static_cast<ptrdiff_t>(i * head_dim), 0.0);
        }
        if (part == kv::KvPart::kKey) {
          Rotate(facts, static_cast<double>(t), error);
        }
        Bf16* const row = noisy.data() + (head * tokens + t) * head_dim;
        for (size_t i = 0; i < head_dim; ++i) {
          row[i] = ToBf16(ToFloat(row[i]) + static_cast<float>(error[i]));
        }
      }
    }
    Write(layer, part, noisy);
    const model::LogitsView logits = Judge();
    double total = 0;
    for (int32_t row = 0; row < logits.num_rows; ++row) {
      total += CompareRow(Row(raw_logits_, row), Row(probabilities_, row),
                          described_[static_cast<size_t>(row)], logits.Row(row), 0)
                   .kl_nats;
    }
    Write(layer, part, raw);
    return total / std::max(1, logits.num_rows);
  }

 private:
  NoisyPrompt(model::Model& model, const CalibrationSequence& sequence)
      : model_(&model), sequence_(&sequence) {}

  [[nodiscard]] size_t Vocabulary() const {
    return static_cast<size_t>(model_->config().vocab_size);
  }
  [[nodiscard]] std::span<const float> Row(const std::vector<float>& rows, int32_t row) const {
    return std::span(rows).subspan(static_cast<size_t>(row) * Vocabulary(), Vocabulary());
  }

  static void Rotate(const codec::ModelFacts& facts, double position, std::vector<double>& x) {
    const size_t half = facts.rope_frequencies.size();
    for (size_t c = 0; c < half; ++c) {
      const double cosine = std::cos(facts.rope_frequencies[c] * position) * facts.rope_scale;
      const double sine = std::sin(facts.rope_frequencies[c] * position) * facts.rope_scale;
      const double a = x[c];
      const double b = x[c + half];
      x[c] = a * cosine - b * sine;
      x[c + half] = b * cosine + a * sine;
    }
  }

  // [kv_heads, tokens_, head_dim], the beginning of the sequence's rows.
  [[nodiscard]] std::vector<Bf16> RawRows(int32_t layer, kv::KvPart part) const {
    const kv::KvGeometry& geometry = model_->kv_geometry();
    const auto head_dim = static_cast<size_t>(geometry.head_dim);
    const size_t all = static_cast<size_t>(sequence_->num_tokens) * head_dim;
    const size_t kept = static_cast<size_t>(tokens_) * head_dim;
    const std::span<const Bf16> rows = sequence_->Rows(layer, part);
    std::vector<Bf16> result;
    for (size_t head = 0; head < static_cast<size_t>(geometry.num_kv_heads); ++head) {
      const auto begin = rows.begin() + static_cast<ptrdiff_t>(head * all);
      result.insert(result.end(), begin, begin + static_cast<ptrdiff_t>(kept));
    }
    return result;
  }
  void Write(int32_t layer, kv::KvPart part, std::span<const Bf16> rows) {
    WriteRows(model_->kv_geometry(), {arena_.data(), arena_.size_bytes()},
              {.block_table = table_,
               .layer = layer,
               .part = part,
               .first_pos = 0,
               .num_tokens = tokens_},
              rows);
  }
  model::LogitsView Judge() {
    model::StepBatch batch;
    batch.Add(std::span(sequence_->tokens)
                  .subspan(static_cast<size_t>(tokens_), static_cast<size_t>(judged_)),
              tokens_, table_, true);
    batch.logit_rows.resize(static_cast<size_t>(judged_));
    std::iota(batch.logit_rows.begin(), batch.logit_rows.end(), 0);
    return model_->Forward(batch, {arena_.data(), arena_.size_bytes()});
  }

  model::Model* model_;
  const CalibrationSequence* sequence_;
  int32_t tokens_ = 0;
  int32_t judged_ = 0;
  std::vector<BlockId> table_;
  AlignedBuffer arena_;
  std::vector<float> raw_logits_;
  std::vector<float> probabilities_;
  std::vector<RawRow> described_;
};

}  // namespace

Result<std::vector<double>> MeasureSensitivity(model::Model& model, const CalibrationKv& kv,
                                               const NoiseShape& keys, const NoiseShape& values,
                                               const SensitivityOptions& options,
                                               const std::function<void(size_t steps)>& on_step) {
  const auto parts = static_cast<size_t>(kv.facts.num_layers) * 2;
  std::vector<double> sums(parts);
  const size_t prompts = std::min(static_cast<size_t>(options.prompts), kv.sequences.size());
  size_t steps = 0;
  for (size_t i = 0; i < prompts; ++i) {
    KVIK_ASSIGN(
        NoisyPrompt prompt,
        NoisyPrompt::Create(model, kv.sequences[i * kv.sequences.size() / prompts], options));
    for (size_t at = 0; at < parts; ++at) {
      const auto layer = static_cast<int32_t>(at / 2);
      const kv::KvPart part = at % 2 == 0 ? kv::KvPart::kKey : kv::KvPart::kValue;
      const NoiseShape& shape = part == kv::KvPart::kKey ? keys : values;
      const double deviation = shape.deviations[at / 2];
      const double divergence = prompt.Divergence(layer, part, shape, kv.facts, options.sink_tokens,
                                                  Rng(options.seed, i * parts + at));
      sums[at] += divergence / (deviation * deviation) / static_cast<double>(prompts);
      if (on_step) {
        on_step(++steps);
      }
    }
  }
  return sums;
}

}  // namespace kvik::eval
