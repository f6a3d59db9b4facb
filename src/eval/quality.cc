// SPDX-License-Identifier: Apache-2.0
// One sequence in an arena of its own: the prompt's positions are written from rows, what follows
// is computed over them, and the next coder writes the prompt anew. Work is cut into layers or rows
// that are independent; their results are added up in order afterwards.
#include "eval/quality.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "eval/kv_rows.h"
#include "eval/task_score.h"
#include "text/detokenizer.h"

namespace kvik::eval {
namespace {

constexpr kv::KvPart kParts[] = {kv::KvPart::kKey, kv::KvPart::kValue};

// Adds the time of its life to a counter.
class Stopwatch {
 public:
  Stopwatch(const Clock& clock, int64_t& total_us)
      : clock_(clock), total_us_(total_us), start_us_(clock.NowMicros()) {}
  ~Stopwatch() { total_us_ += clock_.NowMicros() - start_us_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  const Clock& clock_;
  int64_t& total_us_;
  int64_t start_us_;
};

double SquaredError(std::span<const Bf16> a, std::span<const Bf16> b) {
  double total = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference =
        static_cast<double>(ToFloat(a[i])) - static_cast<double>(ToFloat(b[i]));
    total += difference * difference;
  }
  return std::isfinite(total) ? total : 1e30;
}

// Of one head, [tokens]; empty: all of them.
std::vector<uint8_t> KeptTokens(std::span<const DroppedTokens> dropped, int32_t kv_head,
                                int32_t num_tokens) {
  std::vector<uint8_t> kept;
  for (const DroppedTokens& range : dropped) {
    if (range.kv_head == kv_head && range.first_pos < range.end_pos) {
      kept.resize(static_cast<size_t>(num_tokens), 1);
      std::fill(kept.begin() + range.first_pos, kept.begin() + range.end_pos, uint8_t{0});
    }
  }
  return kept;
}

std::string AnswerText(const text::Tokenizer& tokenizer, std::span<const TokenId> tokens) {
  return text::Decode(tokenizer, tokens, {.skip_special = true, .at_text_start = false});
}

}  // namespace

// What all coders are compared with.
struct PromptEvaluator::RawRun {
  size_t vocab = 0;
  std::vector<float> logits;         // [n, vocab]
  std::vector<float> probabilities;  // [n, vocab]
  std::vector<RawRow> rows;          // [n]
  double text_nll = 0;               // of the reference, if there is one, else of the answer
  int64_t text_positions = 0;
  ProbeShape probe;
  std::vector<std::vector<int32_t>> first_visible;  // [layers][queries]
  std::vector<HeadAttention> heads;                 // [layers][kv_heads]
  double score = -1;

  [[nodiscard]] std::span<const float> Logits(size_t row) const {
    return std::span(logits).subspan(row * vocab, vocab);
  }
  [[nodiscard]] std::span<const float> Probabilities(size_t row) const {
    return std::span(probabilities).subspan(row * vocab, vocab);
  }
};

PromptEvaluator::PromptEvaluator(model::Model& model, ThreadPool& pool,
                                 const text::Tokenizer& tokenizer, const Clock& clock,
                                 const QualityOptions& options)
    : model_(model), pool_(pool), tokenizer_(tokenizer), clock_(clock), options_(options) {}

PromptEvaluator::~PromptEvaluator() = default;

Result<std::unique_ptr<PromptEvaluator>> PromptEvaluator::Create(model::Model& model,
                                                                 ThreadPool& pool,
                                                                 const text::Tokenizer& tokenizer,
                                                                 const Clock& clock,
                                                                 const QualityOptions& options) {
  if (model.kv_geometry().dtype != kv::KvDtype::kBf16) {
    return Err(ErrorCode::kUnsupported,
               "compression is defined for KV stored as bf16; use --kv-cache-dtype bf16");
  }
  return std::unique_ptr<PromptEvaluator>(
      new PromptEvaluator(model, pool, tokenizer, clock, options));
}

Result<void> PromptEvaluator::Reserve(int32_t tokens) {
  const kv::KvGeometry& geometry = model_.kv_geometry();
  const auto blocks =
      static_cast<size_t>((tokens + geometry.block_size_tokens - 1) / geometry.block_size_tokens);
  if (blocks > blocks_.size()) {
    arena_ = AlignedBuffer();
    KVIK_ASSIGN(arena_, AlignedBuffer::Create(blocks * geometry.bytes_per_block()));
    blocks_.resize(blocks);
    std::iota(blocks_.begin(), blocks_.end(), 0);
    masks_ = std::make_unique<kv::BlockMasks>(geometry, static_cast<int32_t>(blocks));
  }
  return {};
}

Result<void> PromptEvaluator::Load(const RawPrompt& prompt, const EvalItem& item) {
  const Stopwatch watch(clock_, times_.raw_us);
  const model::ModelConfig& config = model_.config();
  const RawShape& shape = prompt.shape();
  if (shape.num_layers != config.num_layers || shape.num_kv_heads != config.num_kv_heads ||
      shape.num_q_heads != config.num_heads || shape.head_dim != config.head_dim) {
    return Err(ErrorCode::kInvalidInput, "the raw prompt is of another model");
  }
  const int32_t longest =
      shape.num_tokens + std::max({shape.num_continuation, shape.num_reference,
                                   options_.score_tasks ? options_.answer_tokens : 0});
  if (longest > model_.options().max_context_tokens) {
    return Err(ErrorCode::kInvalidInput, "the raw prompt of %d tokens exceeds the context of %d",
               longest, model_.options().max_context_tokens);
  }
  KVIK_TRY(Reserve(longest));
  prompt_ = &prompt;
  item_ = &item;
  raw_ = std::make_unique<RawRun>();
  coded_rows_.resize(static_cast<size_t>(shape.num_layers) * 2);
  prompt_dropped_.assign(static_cast<size_t>(shape.num_layers), {});
  ComputeRawRun();
  const std::span<const TokenId> said = prompt.continuation();
  for (size_t i = 0; i < raw_->rows.size(); ++i) {
    const TokenId top = raw_->rows[i].top;
    if (top != said[i + 1]) {
      raw_.reset();
      return Err(ErrorCode::kCorrupt,
                 "the raw prompt was computed with other arithmetic: position %zu says token %d, "
                 "not %d",
                 i, static_cast<int>(said[i + 1]), static_cast<int>(top));
    }
  }
  ProbeRaw();
  return {};
}

void PromptEvaluator::WriteRaw() {
  const RawShape& shape = prompt_->shape();
  pool_.ParallelFor(static_cast<size_t>(shape.num_layers) * 2, [&](size_t i, int /*thread*/) {
    const auto layer = static_cast<int32_t>(i / 2);
    WriteRows(model_.kv_geometry(), arena(),
              {.block_table = blocks_,
               .layer = layer,
               .part = kParts[i % 2],
               .first_pos = 0,
               .num_tokens = shape.num_tokens},
              prompt_->rows(layer, kParts[i % 2]));
  });
}

void PromptEvaluator::Drop(int32_t layer, const DroppedTokens& dropped) {
  const int32_t block_size = model_.kv_geometry().block_size_tokens;
  for (int32_t pos = dropped.first_pos; pos < dropped.end_pos;) {
    const int32_t block = pos / block_size;
    const int32_t end = std::min(dropped.end_pos, (block + 1) * block_size);
    masks_->Drop(blocks_[static_cast<size_t>(block)], layer, dropped.kv_head,
                 pos - block * block_size, end - block * block_size);
    pos = end;
  }
}

void PromptEvaluator::ResetMasks() {
  for (const BlockId block : blocks_) {
    masks_->Clear(block);
  }
  for (size_t layer = 0; layer < prompt_dropped_.size(); ++layer) {
    for (const DroppedTokens& dropped : prompt_dropped_[layer]) {
      Drop(static_cast<int32_t>(layer), dropped);
    }
  }
}

template <typename Visit>
Result<void> PromptEvaluator::Feed(std::span<const TokenId> tokens, KvCoder* coder,
                                   PromptQuality* quality, Visit visit) {
  const int32_t prompt_tokens = prompt_->shape().num_tokens;
  const int32_t block_size = model_.kv_geometry().block_size_tokens;
  const bool seal = coder != nullptr && options_.every_block;
  const int32_t most = std::min(model_.options().max_logit_rows, model_.options().max_batch_rows);
  const auto end = static_cast<int32_t>(tokens.size());
  for (int32_t first = 0; first < end;) {
    const int32_t pos = prompt_tokens + first;
    int32_t count = std::min(most, end - first);
    if (seal) {
      count = std::min(count, block_size - pos % block_size);
    }
    step_.Clear();
    step_.Add(tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(count)), pos, blocks_,
              false);
    step_.logit_rows.resize(static_cast<size_t>(count));
    std::iota(step_.logit_rows.begin(), step_.logit_rows.end(), 0);
    step_.masks = coder != nullptr ? masks_.get() : nullptr;
    model::LogitsView logits;
    {
      const Stopwatch watch(clock_, times_.forward_us);
      logits = model_.Forward(step_, arena());
    }
    visit(static_cast<size_t>(first), logits);
    first += count;
    if (seal && (pos + count) % block_size == 0) {
      const int32_t begin = std::max(prompt_tokens, pos + count - block_size);
      KVIK_TRY(Pass(*coder, begin, pos + count - begin, quality));
    }
  }
  return {};
}

void PromptEvaluator::ComputeRawRun() {
  const std::span<const TokenId> said = prompt_->continuation();
  const std::span<const TokenId> reference = prompt_->reference();
  const size_t n = said.size() - 1;
  RawRun& raw = *raw_;
  raw.vocab = static_cast<size_t>(model_.config().vocab_size);
  raw.logits.resize(n * raw.vocab);
  raw.probabilities.resize(n * raw.vocab);
  raw.rows.resize(n);
  WriteRaw();
  // Without a coder nothing here fails.
  (void)Feed(said.first(n), nullptr, nullptr, [&](size_t first, const model::LogitsView& logits) {
    pool_.ParallelFor(static_cast<size_t>(logits.num_rows), [&](size_t i, int /*thread*/) {
      const std::span<const float> row = logits.Row(static_cast<int32_t>(i));
      const size_t at = (first + i) * raw.vocab;
      std::copy(row.begin(), row.end(), raw.logits.begin() + static_cast<ptrdiff_t>(at));
      raw.rows[first + i] = DescribeRow(row, std::span(raw.probabilities).subspan(at, raw.vocab));
    });
  });
  if (reference.size() >= 2) {
    std::vector<double> nll(reference.size() - 1);
    (void)Feed(
        reference.first(nll.size()), nullptr, nullptr,
        [&](size_t first, const model::LogitsView& logits) {
          pool_.ParallelFor(static_cast<size_t>(logits.num_rows), [&](size_t i, int /*thread*/) {
            nll[first + i] = RowNll(logits.Row(static_cast<int32_t>(i)), reference[first + i + 1]);
          });
        });
    raw.text_nll = std::accumulate(nll.begin(), nll.end(), 0.0);
    raw.text_positions = static_cast<int64_t>(nll.size());
  } else {
    for (size_t i = 0; i < n; ++i) {
      const double nll = raw.rows[i].log_sum -
                         static_cast<double>(raw.Logits(i)[static_cast<size_t>(said[i + 1])]);
      raw.text_nll += std::min(nll, kWorstNats);
    }
    raw.text_positions = static_cast<int64_t>(n);
  }
  if (options_.score_tasks && MeasureOf(*item_) != TaskMeasure::kNone) {
    raw.score = ScoreAnswer(*item_, AnswerText(tokenizer_, said));
  }
}

void PromptEvaluator::ProbeRaw() {
  const RawShape& shape = prompt_->shape();
  const model::ModelConfig& config = model_.config();
  RawRun& raw = *raw_;
  raw.probe = {.num_queries = shape.num_queries,
               .num_q_heads = shape.num_q_heads,
               .num_kv_heads = shape.num_kv_heads,
               .head_dim = shape.head_dim,
               .num_tokens = shape.num_tokens,
               .scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim))};
  for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
    const bool window =
        config.sliding_window_tokens > 0 && layer >= config.sliding_window_first_layer;
    std::vector<int32_t>& visible = raw.first_visible.emplace_back();
    for (const int32_t position : prompt_->query_positions()) {
      const int32_t first = shape.num_tokens + position + 1 - config.sliding_window_tokens;
      visible.push_back(window ? std::clamp(first, 0, shape.num_tokens) : 0);
    }
  }
  const auto kv_heads = static_cast<size_t>(shape.num_kv_heads);
  const size_t head_values =
      static_cast<size_t>(shape.num_tokens) * static_cast<size_t>(shape.head_dim);
  raw.heads.resize(static_cast<size_t>(shape.num_layers) * kv_heads);
  pool_.ParallelFor(raw.heads.size(), [&](size_t i, int /*thread*/) {
    const auto layer = static_cast<int32_t>(i / kv_heads);
    const auto rows = [&](kv::KvPart part) {
      return prompt_->rows(layer, part).subspan(i % kv_heads * head_values, head_values);
    };
    raw.heads[i] = ComputeHead(raw.probe, static_cast<int32_t>(i % kv_heads),
                               prompt_->queries(layer), raw.first_visible[i / kv_heads],
                               rows(kv::KvPart::kKey), rows(kv::KvPart::kValue), {});
  });
}

Result<void> PromptEvaluator::Pass(KvCoder& coder, int32_t first_pos, int32_t num_tokens,
                                   PromptQuality* quality) {
  const Stopwatch watch(clock_, times_.coding_us);
  const kv::KvGeometry& geometry = model_.kv_geometry();
  const auto layers = static_cast<size_t>(geometry.num_layers);
  const int32_t prompt_tokens = prompt_->shape().num_tokens;
  std::vector<Result<CodedSize>> sizes(layers, CodedSize());
  pool_.ParallelFor(layers, [&](size_t i, int thread) {
    const auto layer = static_cast<int32_t>(i);
    const auto range = [&](kv::KvPart part) {
      return RowRange{blocks_, layer, part, first_pos, num_tokens};
    };
    for (const kv::KvPart part : kParts) {
      std::vector<Bf16>& rows = coded_rows_[2 * i + static_cast<size_t>(part)];
      if (first_pos == 0 && num_tokens == prompt_tokens) {
        const std::span<const Bf16> raw = prompt_->rows(layer, part);
        rows.assign(raw.begin(), raw.end());
      } else {
        rows.resize(NumRowValues(geometry, num_tokens));
        ReadRows(geometry, arena(), range(part), rows);
      }
    }
    const size_t expected = coded_rows_[2 * i].size();
    sizes[i] = coder.RoundTrip({.layer = layer,
                                .first_pos = first_pos,
                                .num_tokens = num_tokens,
                                .prompt_tokens = prompt_tokens,
                                .keys = &coded_rows_[2 * i],
                                .values = &coded_rows_[2 * i + 1]},
                               thread);
    if (sizes[i]) {
      for (const kv::KvPart part : kParts) {
        const std::vector<Bf16>& rows = coded_rows_[2 * i + static_cast<size_t>(part)];
        KVIK_CHECK(rows.size() == expected);
        WriteRows(geometry, arena(), range(part), rows);
      }
    }
  });
  const bool whole_prompt = first_pos == 0 && num_tokens == prompt_tokens;
  for (size_t i = 0; i < layers; ++i) {
    const Result<CodedSize>& size = sizes[i];
    if (!size) {
      return size.error().Wrap(coder.name());
    }
    if (whole_prompt) {
      prompt_dropped_[i] = size->dropped;
    } else {
      for (const DroppedTokens& dropped : size->dropped) {
        Drop(static_cast<int32_t>(i), dropped);
      }
    }
    if (quality != nullptr) {
      quality->bytes += static_cast<int64_t>(size->bytes);
      quality->values += static_cast<int64_t>(2 * NumRowValues(geometry, num_tokens));
    }
  }
  if (whole_prompt) {
    ResetMasks();
  }
  return {};
}

void PromptEvaluator::CompareRows(PromptQuality& quality) {
  const Stopwatch watch(clock_, times_.probe_us);
  const RawShape& shape = prompt_->shape();
  const RawRun& raw = *raw_;
  const auto kv_heads = static_cast<size_t>(shape.num_kv_heads);
  const size_t head_values =
      static_cast<size_t>(shape.num_tokens) * static_cast<size_t>(shape.head_dim);
  struct Errors {
    double key = 0;
    double value = 0;
    AttentionError attention;
  };
  std::vector<Errors> errors(raw.heads.size());
  pool_.ParallelFor(errors.size(), [&](size_t i, int /*thread*/) {
    const auto layer = static_cast<int32_t>(i / kv_heads);
    const size_t first = i % kv_heads * head_values;
    const auto before = [&](kv::KvPart part) {
      return prompt_->rows(layer, part).subspan(first, head_values);
    };
    const auto after = [&](kv::KvPart part) {
      return std::span<const Bf16>(
                 coded_rows_[static_cast<size_t>(layer) * 2 + static_cast<size_t>(part)])
          .subspan(first, head_values);
    };
    const std::span<const Bf16> keys = after(kv::KvPart::kKey);
    const std::span<const Bf16> values = after(kv::KvPart::kValue);
    errors[i].key = SquaredError(before(kv::KvPart::kKey), keys);
    errors[i].value = SquaredError(before(kv::KvPart::kValue), values);
    const std::vector<int32_t>& visible = raw.first_visible[static_cast<size_t>(layer)];
    const auto head = static_cast<int32_t>(i % kv_heads);
    const std::vector<uint8_t> kept =
        KeptTokens(prompt_dropped_[static_cast<size_t>(layer)], head, shape.num_tokens);
    const HeadAttention coded =
        ComputeHead(raw.probe, head, prompt_->queries(layer), visible, keys, values, kept);
    errors[i].attention = CompareHeads(raw.probe, visible, raw.heads[i], coded, kept);
  });
  quality.prompt_values += static_cast<int64_t>(errors.size() * 2 * head_values);
  for (const Errors& error : errors) {
    quality.key_error += error.key;
    quality.value_error += error.value;
    quality.attention += error.attention;
  }
}

Result<void> PromptEvaluator::CompareContinuation(KvCoder& coder, PromptQuality& quality,
                                                  std::vector<TokenId>& tops) {
  const RawRun& raw = *raw_;
  const std::span<const TokenId> said = prompt_->continuation();
  std::vector<RowComparison> rows(said.size() - 1);
  KVIK_TRY(
      Feed(said.first(rows.size()), &coder, &quality,
           [&](size_t first, const model::LogitsView& logits) {
             const Stopwatch watch(clock_, times_.compare_us);
             pool_.ParallelFor(static_cast<size_t>(logits.num_rows), [&](size_t i, int /*thread*/) {
               const size_t row = first + i;
               rows[row] = CompareRow(raw.Logits(row), raw.Probabilities(row), raw.rows[row],
                                      logits.Row(static_cast<int32_t>(i)), said[row + 1]);
             });
           }));
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool agrees = rows[i].top == raw.rows[i].top;
    const bool sure = raw.rows[i].margin >= kSureMargin;
    ++quality.positions;
    quality.agreeing += agrees ? 1 : 0;
    quality.sure_positions += sure ? 1 : 0;
    quality.sure_agreeing += sure && agrees ? 1 : 0;
    quality.kl_nats += rows[i].kl_nats;
    quality.text_nll += rows[i].nll_nats;
    tops.push_back(rows[i].top);
  }
  return {};
}

Result<void> PromptEvaluator::MeasureText(KvCoder& coder, PromptQuality& quality) {
  const std::span<const TokenId> reference = prompt_->reference();
  quality.text_positions = raw_->text_positions;
  quality.text_nll_raw = raw_->text_nll;
  if (reference.size() < 2) {
    return {};  // the answer is the text, and measured already
  }
  ResetMasks();  // the reference takes the place of the answer
  std::vector<double> nll(reference.size() - 1);
  KVIK_TRY(Feed(
      reference.first(nll.size()), &coder, nullptr,
      [&](size_t first, const model::LogitsView& logits) {
        pool_.ParallelFor(static_cast<size_t>(logits.num_rows), [&](size_t i, int /*thread*/) {
          nll[first + i] = RowNll(logits.Row(static_cast<int32_t>(i)), reference[first + i + 1]);
        });
      }));
  quality.text_nll = std::accumulate(nll.begin(), nll.end(), 0.0);
  return {};
}

// Up to the first token that differs, the answer on coded KV is the raw one: fed and generated
// tokens are the same there.
Result<double> PromptEvaluator::ScoreCoded(KvCoder& coder, std::span<const TokenId> tops) {
  const Stopwatch watch(clock_, times_.task_us);
  const std::span<const TokenId> said = prompt_->continuation();
  size_t same = 0;
  while (same < tops.size() && tops[same] == said[same + 1]) {
    ++same;
  }
  if (same == tops.size()) {
    return raw_->score;
  }
  std::vector<TokenId> answer(said.begin(), said.begin() + static_cast<ptrdiff_t>(same) + 1);
  const int32_t prompt_tokens = prompt_->shape().num_tokens;
  const int32_t block_size = model_.kv_geometry().block_size_tokens;
  if (options_.every_block) {
    // Blocks beyond the prompt went through the coder with other tokens in them.
    ResetMasks();
    KVIK_TRY(Feed(answer, &coder, nullptr, [](size_t, const model::LogitsView&) {}));
  }
  answer.push_back(std::max(0, tops[same]));
  const auto limit = static_cast<size_t>(options_.answer_tokens) + 1;
  while (!tokenizer_.IsEnd(answer.back()) && answer.size() < limit) {
    const int32_t pos = prompt_tokens + static_cast<int32_t>(answer.size()) - 1;
    step_.Clear();
    step_.Add(std::span(answer).last(1), pos, blocks_, true);
    step_.masks = masks_.get();
    const model::LogitsView logits = model_.Forward(step_, arena());
    answer.push_back(std::max(0, Argmax(logits.Row(0))));
    if (options_.every_block && (pos + 1) % block_size == 0) {
      const int32_t begin = std::max(prompt_tokens, pos + 1 - block_size);
      KVIK_TRY(Pass(coder, begin, pos + 1 - begin, nullptr));
    }
  }
  return ScoreAnswer(*item_, AnswerText(tokenizer_, answer));
}

Result<PromptQuality> PromptEvaluator::Evaluate(KvCoder& coder) {
  KVIK_CHECK(raw_ != nullptr && !raw_->rows.empty(), "no prompt with judged positions is loaded");
  PromptQuality quality;
  KVIK_TRY(Pass(coder, 0, prompt_->shape().num_tokens, &quality));
  CompareRows(quality);
  std::vector<TokenId> tops;
  KVIK_TRY(CompareContinuation(coder, quality, tops));
  if (raw_->score >= 0) {
    quality.scored = 1;
    quality.score_raw = raw_->score;
    KVIK_ASSIGN(quality.score, ScoreCoded(coder, tops));
  }
  KVIK_TRY(MeasureText(coder, quality));
  return quality;
}

}  // namespace kvik::eval
