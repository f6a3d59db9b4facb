// SPDX-License-Identifier: Apache-2.0
// eval/cell_run.h: many coders on the prompts of one cell, in one pass: every prompt's raw run is
// loaded and computed once for all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "eval/kv_coder.h"
#include "eval/prompts.h"
#include "eval/quality.h"
#include "eval/raw_corpus.h"
#include "eval/results_log.h"
#include "eval/statistics.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace kvik::eval {

struct CellRunOptions {
  // Candidates are taken in their order until this many positions can be judged; 0: all.
  int64_t positions = 0;
  uint64_t seed = 0;  // of the intervals
  QualityOptions quality = {};
};

struct CellRunResult {
  // By coder; its error where it failed, and then nothing more of it was tried.
  std::vector<Result<CellQuality>> coders;
  std::vector<std::vector<PromptQuality>> prompts;  // by coder, one a prompt; empty where it failed
  int64_t evaluations = 0;                          // measured now
  int64_t known = 0;                                // taken from the log
  QualityTimes times;
  int64_t corpus_us = 0;  // loading and computing raw prompts
};

// What a run has still to do.
struct CellWork {
  int64_t prompts = 0;           // of the cell, with what is known
  int64_t prompt_tokens = 0;     // of them all
  int64_t raw_prompts = 0;       // whose raw run is neither on disk nor needless
  int64_t raw_tokens = 0;        // of them
  int64_t loads = 0;             // prompts that some coder is to be measured on
  int64_t evaluations = 0;       // prompts times coders
  int64_t evaluated_tokens = 0;  // that go through coders
};

// What the model does in a second here, for saying how long something will take.
struct ModelSpeed {
  double prefill_tokens_per_s = 0;
  double judged_rows_per_s = 0;  // with logits
};
// With so many judged rows at a time, as far as the model takes them. Takes a second or two.
Result<ModelSpeed> MeasureModelSpeed(model::Model& model, const Clock& clock,
                                     int64_t judged_together);

// Borrows everything for its lifetime. Owned by the model's thread.
class CellRun {
 public:
  CellRun(model::Model& model, ThreadPool& pool, const text::Tokenizer& tokenizer,
          const Clock& clock, const CellPrompts& prompts, RawCorpus& corpus, ResultsLog& log,
          const CellRunOptions& options);

  // Measures what the log does not have, several coders of a prompt at a time. What they gave is in
  // the log when the next ones begin, so that a run which was ended goes on there. kNotFound: no
  // prompt of the cell has a position to judge. Fails as the corpus and the log do.
  Result<CellRunResult> Run(std::span<KvCoder* const> coders);

  // What Run would do now, if every answer is as long as it may be.
  Result<CellWork> Plan(std::span<KvCoder* const> coders);

  // Called with positions judged so far, summed over coders, those from the log included.
  std::function<void(int64_t positions)> on_progress;

 private:
  struct State;
  Result<void> RunBatch(std::span<KvCoder* const> coders, std::span<const size_t> candidates,
                        State& state);
  // `prompt` is null where every coder's result is known.
  Result<void> RunPrompt(std::span<KvCoder* const> coders, uint64_t key, const RawPrompt* prompt,
                         State& state);
  [[nodiscard]] uint64_t KeyOf(uint64_t prompt_key, const KvCoder& coder) const;
  [[nodiscard]] bool Enough(int64_t positions) const {
    return options_.positions > 0 && positions >= options_.positions;
  }

  model::Model& model_;
  ThreadPool& pool_;
  const text::Tokenizer& tokenizer_;
  const Clock& clock_;
  const CellPrompts& prompts_;
  RawCorpus& corpus_;
  ResultsLog& log_;
  CellRunOptions options_;
};

}  // namespace kvik::eval
