// SPDX-License-Identifier: Apache-2.0
// A group of coders goes through each stage together, so that the model sees the rows of all of
// them at once. Work is cut into heads or rows that are independent; their results are added up in
// order afterwards.
#include "eval/quality.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "eval/stopwatch.h"
#include "eval/task_score.h"
#include "text/detokenizer.h"

namespace kvik::eval {
namespace {

// Branches of a sequence.
constexpr size_t kAnswer = 0;
constexpr size_t kReference = 1;

// Sequences lie side by side while their KV is no more than this.
constexpr size_t kGroupBytes = size_t{1} << 30;

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

// A coder of a group on its way through the stages.
struct PromptEvaluator::Measured {
  bool unchanged = false;  // everything is as in the raw run, so the model need not run
  PromptQuality quality;
  std::vector<TokenId> tops;  // most probable tokens, by judged position
};

PromptEvaluator::PromptEvaluator(model::Model& model, ThreadPool& pool,
                                 const text::Tokenizer& tokenizer, const Clock& clock,
                                 const QualityOptions& options)
    : model_(model),
      pool_(pool),
      tokenizer_(tokenizer),
      clock_(clock),
      options_(options),
      sequences_(model, pool, clock, options.every_block) {}

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

size_t PromptEvaluator::GroupSize(const RawPrompt& prompt, int32_t tokens, size_t coders) const {
  const model::ModelOptions& limits = model_.options();
  int32_t rows = 0;  // of a coder in one step
  for (const int32_t text : {prompt.shape().num_continuation, prompt.shape().num_reference}) {
    // Where every block goes through the coder, a step takes no more of a text than a block.
    const int32_t fed = std::max(0, text - 1);
    rows += options_.every_block ? std::min(fed, limits.block_size_tokens) : fed;
  }
  const int32_t most = std::min(limits.max_logit_rows, limits.max_batch_rows);
  const size_t bytes = std::max<size_t>(1, sequences_.BytesOf(prompt, tokens));
  return std::clamp<size_t>(
      std::min(static_cast<size_t>(most / std::max(1, rows)), kGroupBytes / bytes), 1,
      std::max<size_t>(1, coders));
}

Result<void> PromptEvaluator::Load(const RawPrompt& prompt, const EvalItem& item, size_t coders) {
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
  auto next = std::make_unique<RawRun>();
  if (raw_ != nullptr) {  // the large arrays keep their memory
    next->logits = std::move(raw_->logits);
    next->probabilities = std::move(raw_->probabilities);
  }
  raw_.reset();
  KVIK_TRY(sequences_.Reset(prompt, GroupSize(prompt, longest, coders), longest));
  prompt_ = &prompt;
  item_ = &item;
  raw_ = std::move(next);
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

void PromptEvaluator::ComputeRawRun() {
  const std::span<const TokenId> said = prompt_->continuation();
  const std::span<const TokenId> reference = prompt_->reference();
  const size_t n = said.size() - 1;
  RawRun& raw = *raw_;
  raw.vocab = static_cast<size_t>(model_.config().vocab_size);
  raw.logits.resize(n * raw.vocab);
  raw.probabilities.resize(n * raw.vocab);
  raw.rows.resize(n);
  {
    const Stopwatch watch(clock_, times_.raw_us);
    sequences_.BeginRaw(0);
  }
  const FeedTimes times{.model_us = times_.raw_us, .visit_us = times_.raw_us};
  std::vector<double> nll(reference.size() >= 2 ? reference.size() - 1 : 0);
  const FedTokens texts[] = {{.branch = kAnswer, .tokens = said.first(n)},
                             {.branch = kReference, .tokens = reference.first(nll.size())}};
  sequences_.Feed(texts, times, [&](size_t feed, size_t row, std::span<const float> logits) {
    if (texts[feed].branch == kReference) {
      nll[row] = RowNll(logits, reference[row + 1]);
      return;
    }
    const size_t at = row * raw.vocab;
    std::copy(logits.begin(), logits.end(), raw.logits.begin() + static_cast<ptrdiff_t>(at));
    raw.rows[row] = DescribeRow(logits, std::span(raw.probabilities).subspan(at, raw.vocab));
  });
  if (!nll.empty()) {
    raw.text_nll = std::accumulate(nll.begin(), nll.end(), 0.0);
    raw.text_positions = static_cast<int64_t>(nll.size());
  } else {
    for (size_t i = 0; i < n; ++i) {
      const double nats = raw.rows[i].log_sum -
                          static_cast<double>(raw.Logits(i)[static_cast<size_t>(said[i + 1])]);
      raw.text_nll += std::min(nats, kWorstNats);
    }
    raw.text_positions = static_cast<int64_t>(n);
  }
  if (options_.score_tasks && MeasureOf(*item_) != TaskMeasure::kNone) {
    raw.score = ScoreAnswer(*item_, AnswerText(tokenizer_, said));
  }
}

void PromptEvaluator::ProbeRaw() {
  const Stopwatch watch(clock_, times_.raw_us);
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

void PromptEvaluator::CompareRows(size_t sequence, PromptQuality& quality) {
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
      return sequences_.coded_rows(layer, part).subspan(first, head_values);
    };
    const std::span<const Bf16> keys = after(kv::KvPart::kKey);
    const std::span<const Bf16> values = after(kv::KvPart::kValue);
    errors[i].key = SquaredError(before(kv::KvPart::kKey), keys);
    errors[i].value = SquaredError(before(kv::KvPart::kValue), values);
    const std::vector<int32_t>& visible = raw.first_visible[static_cast<size_t>(layer)];
    const auto head = static_cast<int32_t>(i % kv_heads);
    const std::vector<uint8_t> kept =
        KeptTokens(sequences_.dropped(sequence, layer), head, shape.num_tokens);
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

void PromptEvaluator::CompareTexts(std::span<Measured> group) {
  const RawRun& raw = *raw_;
  const std::span<const TokenId> said = prompt_->continuation();
  const std::span<const TokenId> reference = prompt_->reference();
  const size_t n = said.size() - 1;
  // Without a reference the answer is the text.
  const size_t num_nll = reference.size() >= 2 ? reference.size() - 1 : 0;
  struct Rows {
    std::vector<RowComparison> answer;
    std::vector<double> nll;  // of the reference
  };
  std::vector<Rows> rows(group.size(), {std::vector<RowComparison>(n), {}});
  const auto compare = [&](size_t sequence, size_t row, std::span<const float> logits) {
    rows[sequence].answer[row] =
        CompareRow(raw.Logits(row), raw.Probabilities(row), raw.rows[row], logits, said[row + 1]);
  };
  std::vector<FedTokens> feeds;
  for (size_t i = 0; i < group.size(); ++i) {
    if (group[i].unchanged) {
      const Stopwatch watch(clock_, times_.compare_us);
      pool_.ParallelFor(n, [&](size_t row, int /*thread*/) { compare(i, row, raw.Logits(row)); });
    } else if (!sequences_.error(i)) {
      rows[i].nll.resize(num_nll);
      feeds.push_back({.sequence = i, .branch = kAnswer, .tokens = said.first(n)});
      feeds.push_back({.sequence = i, .branch = kReference, .tokens = reference.first(num_nll)});
    }
  }
  sequences_.Feed(feeds, {.model_us = times_.forward_us, .visit_us = times_.compare_us},
                  [&](size_t feed, size_t row, std::span<const float> logits) {
                    const size_t sequence = feeds[feed].sequence;
                    if (feeds[feed].branch == kAnswer) {
                      compare(sequence, row, logits);
                    } else {
                      rows[sequence].nll[row] = RowNll(logits, reference[row + 1]);
                    }
                  });
  for (size_t i = 0; i < group.size(); ++i) {
    PromptQuality& quality = group[i].quality;
    for (size_t row = 0; row < n; ++row) {
      const RowComparison& comparison = rows[i].answer[row];
      const bool agrees = comparison.top == raw.rows[row].top;
      const bool sure = raw.rows[row].margin >= kSureMargin;
      ++quality.positions;
      quality.agreeing += agrees ? 1 : 0;
      quality.sure_positions += sure ? 1 : 0;
      quality.sure_agreeing += sure && agrees ? 1 : 0;
      quality.kl_nats += comparison.kl_nats;
      quality.text_nll += comparison.nll_nats;
      group[i].tops.push_back(comparison.top);
    }
    quality.text_positions = raw.text_positions;
    quality.text_nll_raw = raw.text_nll;
    if (num_nll > 0) {
      quality.text_nll = group[i].unchanged
                             ? raw.text_nll
                             : std::accumulate(rows[i].nll.begin(), rows[i].nll.end(), 0.0);
    }
    // What goes through the coder later is of answers that differ.
    quality.values = sequences_.values(i);
    quality.bytes = sequences_.bytes(i);
  }
}

// Up to the first token that differs, the answer on coded KV is the raw one: fed and generated
// tokens are the same there.
void PromptEvaluator::ScoreAnswers(std::span<Measured> group) {
  const std::span<const TokenId> said = prompt_->continuation();
  const FeedTimes times{.model_us = times_.task_us, .visit_us = times_.task_us};
  struct Answer {
    size_t sequence;
    std::vector<TokenId> tokens;
  };
  std::vector<Answer> answers;  // those that differ
  std::vector<FedTokens> feeds;
  for (size_t i = 0; i < group.size(); ++i) {
    const std::vector<TokenId>& tops = group[i].tops;
    group[i].quality.scored = 1;
    group[i].quality.score = group[i].quality.score_raw = raw_->score;
    const auto same = static_cast<size_t>(
        std::mismatch(tops.begin(), tops.end(), said.begin() + 1).first - tops.begin());
    if (sequences_.error(i) || same == tops.size()) {
      continue;
    }
    answers.push_back({i, {said.begin(), said.begin() + static_cast<ptrdiff_t>(same) + 2}});
    answers.back().tokens.back() = std::max(0, tops[same]);
    if (options_.every_block) {
      // Blocks beyond the prompt went through the coder with other tokens in them.
      sequences_.Rewind(i);
      feeds.push_back({.sequence = i, .tokens = said.first(same + 1)});
    }
  }
  sequences_.Feed(feeds, times, [](size_t, size_t, std::span<const float>) {});
  const auto limit = static_cast<size_t>(options_.answer_tokens) + 1;
  std::vector<TokenId> next(answers.size());
  while (true) {
    feeds.clear();
    std::vector<Answer*> growing;  // by feed
    for (Answer& answer : answers) {
      if (!tokenizer_.IsEnd(answer.tokens.back()) && answer.tokens.size() < limit &&
          !sequences_.error(answer.sequence)) {
        growing.push_back(&answer);
        feeds.push_back({.sequence = answer.sequence,
                         .first = answer.tokens.size() - 1,
                         .tokens = std::span(answer.tokens).last(1)});
      }
    }
    if (feeds.empty()) {
      break;
    }
    sequences_.Feed(feeds, times, [&](size_t feed, size_t /*row*/, std::span<const float> logits) {
      next[feed] = std::max(0, Argmax(logits));
    });
    for (size_t feed = 0; feed < feeds.size(); ++feed) {
      growing[feed]->tokens.push_back(next[feed]);
    }
  }
  for (const Answer& answer : answers) {
    group[answer.sequence].quality.score =
        ScoreAnswer(*item_, AnswerText(tokenizer_, answer.tokens));
  }
}

std::vector<Result<PromptQuality>> PromptEvaluator::Evaluate(std::span<KvCoder* const> coders) {
  KVIK_CHECK(raw_ != nullptr && !raw_->rows.empty(), "no prompt with judged positions is loaded");
  KVIK_CHECK(coders.size() <= group_size(), "%zu coders at once, not %zu", coders.size(),
             group_size());
  std::vector<Measured> group(coders.size());
  for (size_t i = 0; i < group.size(); ++i) {
    sequences_.Begin(i, *coders[i], times_.coding_us);
    if (!sequences_.error(i)) {
      CompareRows(i, group[i].quality);
      group[i].unchanged = sequences_.unchanged(i) && !options_.every_block;
    }
  }
  CompareTexts(group);
  if (raw_->score >= 0) {
    ScoreAnswers(group);
  }
  std::vector<Result<PromptQuality>> results;
  for (size_t i = 0; i < group.size(); ++i) {
    const std::optional<Error>& error = sequences_.error(i);
    results.push_back(error ? Result<PromptQuality>(*error)
                            : Result<PromptQuality>(group[i].quality));
  }
  return results;
}

}  // namespace kvik::eval
