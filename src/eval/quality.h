// SPDX-License-Identifier: Apache-2.0
// eval/quality.h: what decoding on coded KV costs, on one prompt.
//
// The prompt's KV goes through a coder at the boundary of prefill and decode; the tokens the raw
// model answered with are then fed to the model on what came back, and every row of logits is
// compared with the raw run's. (Fed, not generated: one changed token would make all later rows
// incomparable.) Results depend on the prompt, the coder and the options; never on threads, on what
// was evaluated before, or on how many rows the model takes at once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "eval/attention_probe.h"
#include "eval/coded_sequences.h"
#include "eval/dataset.h"
#include "eval/kv_coder.h"
#include "eval/logits.h"
#include "eval/raw_prompt.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace kvik::eval {

// Sums over a prompt; means and intervals are made from many of them (statistics.h).
struct PromptQuality {
  int64_t positions = 0;       // compared
  int64_t agreeing = 0;        // the same most probable token
  int64_t sure_positions = 0;  // of those the raw run was sure of: margin >= kSureMargin
  int64_t sure_agreeing = 0;
  double kl_nats = 0;
  // Of a text that is not the coder's doing: the item's reference where there is one, else what the
  // raw model said.
  int64_t text_positions = 0;
  double text_nll = 0;
  double text_nll_raw = 0;

  int64_t values = 0;         // that went through the coder
  int64_t bytes = 0;          // that came out
  int64_t prompt_values = 0;  // of `values`, those of the prompt
  double key_error = 0;       // sums of squared differences of the prompt's; dropped ones are 0s
  double value_error = 0;
  AttentionError attention;  // of the kept queries

  int64_t scored = 0;  // 1 if there are scores, in [0, 1]
  double score = 0;
  double score_raw = 0;
};

constexpr float kSureMargin = 0.5F;

struct QualityOptions {
  // Blocks that fill up while decoding go through the coder as well.
  bool every_block = false;
  // Answers are also generated on coded KV and scored, as far as they are not the raw ones.
  bool score_tasks = false;
  int32_t answer_tokens = 64;  // of such an answer: RawCorpusOptions::continuation_tokens
};

// Where the time of evaluations went.
struct QualityTimes {
  int64_t raw_us = 0;      // the raw run's logits and attention
  int64_t coding_us = 0;   // encode and decode
  int64_t forward_us = 0;  // the model on coded KV
  int64_t compare_us = 0;  // of logits
  int64_t probe_us = 0;    // of rows and attention
  int64_t task_us = 0;     // generating answers
};

// Measures coders on prompts, one prompt after the other, several coders at a time: their rows go
// through the model together. Owned by the model's thread.
class PromptEvaluator {
 public:
  // Borrows everything. kUnsupported: the model does not store KV as bf16.
  static Result<std::unique_ptr<PromptEvaluator>> Create(model::Model& model, ThreadPool& pool,
                                                         const text::Tokenizer& tokenizer,
                                                         const Clock& clock,
                                                         const QualityOptions& options);
  ~PromptEvaluator();
  PromptEvaluator(const PromptEvaluator&) = delete;
  PromptEvaluator& operator=(const PromptEvaluator&) = delete;

  // Prepares `prompt`, which must outlive its evaluations, for `coders` coders: the raw run once,
  // for all of them. kInvalidInput: it is of another model. kCorrupt: the raw run does not say what
  // the prompt says it said, so it was computed with other arithmetic. kExhausted.
  Result<void> Load(const RawPrompt& prompt, const EvalItem& item, size_t coders = 1);
  // How many coders Evaluate takes at once for the loaded prompt: what fits a step of the model and
  // a bound on memory, 1 at least.
  [[nodiscard]] size_t group_size() const { return sequences_.size(); }
  // The result of every coder; each fails alone, as it does. REQUIRES: a prompt was loaded, with at
  // least one judged position; group_size() coders at most.
  std::vector<Result<PromptQuality>> Evaluate(std::span<KvCoder* const> coders);

  [[nodiscard]] const QualityTimes& times() const { return times_; }

 private:
  struct RawRun;
  struct Measured;
  PromptEvaluator(model::Model& model, ThreadPool& pool, const text::Tokenizer& tokenizer,
                  const Clock& clock, const QualityOptions& options);

  [[nodiscard]] size_t GroupSize(const RawPrompt& prompt, int32_t tokens, size_t coders) const;
  void ComputeRawRun();
  void ProbeRaw();
  // What the coder did to the prompt's rows and to attention; right after the sequence's Begin.
  void CompareRows(size_t sequence, PromptQuality& quality);
  // Of a group; element i is of sequence i.
  void CompareTexts(std::span<Measured> group);
  void ScoreAnswers(std::span<Measured> group);

  model::Model& model_;
  ThreadPool& pool_;
  const text::Tokenizer& tokenizer_;
  const Clock& clock_;
  QualityOptions options_;
  QualityTimes times_;

  CodedSequences sequences_;
  const RawPrompt* prompt_ = nullptr;
  const EvalItem* item_ = nullptr;
  std::unique_ptr<RawRun> raw_;
};

}  // namespace kvik::eval
