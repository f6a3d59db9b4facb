// SPDX-License-Identifier: Apache-2.0
#include "eval/cell_run.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "base/aligned_buffer.h"
#include "base/check.h"

namespace kvik::eval {
namespace {

// Raise when any measured number changes its meaning.
constexpr int kMeasureVersion = 1;

}  // namespace

struct CellRun::State {
  std::unique_ptr<PromptEvaluator> evaluator;
  std::vector<std::optional<Error>> failures;         // by coder
  std::vector<std::vector<PromptQuality>> qualities;  // by coder, one a prompt
  int64_t positions = 0;                              // of the prompts so far
  int64_t progress = 0;
  CellRunResult result;
};

CellRun::CellRun(model::Model& model, ThreadPool& pool, const text::Tokenizer& tokenizer,
                 const Clock& clock, const CellPrompts& prompts, RawCorpus& corpus, ResultsLog& log,
                 const CellRunOptions& options)
    : model_(model),
      pool_(pool),
      tokenizer_(tokenizer),
      clock_(clock),
      prompts_(prompts),
      corpus_(corpus),
      log_(log),
      options_(options) {}

uint64_t CellRun::KeyOf(uint64_t prompt_key, const KvCoder& coder) const {
  const QualityOptions& quality = options_.quality;
  std::string text = "quality " + std::to_string(kMeasureVersion) + "\n" + coder.identity() + "\n" +
                     std::to_string(prompt_key);
  text += quality.every_block ? "\nevery block" : "";
  text += quality.score_tasks ? "\nscored" : "";
  return ResultKey(text);
}

Result<CellWork> CellRun::Plan(std::span<KvCoder* const> coders) {
  CellWork work;
  int64_t positions = 0;
  for (size_t candidate = 0; candidate < prompts_.size() && !Enough(positions); ++candidate) {
    KVIK_ASSIGN(const std::optional<RawPromptInfo> info, corpus_.Info(candidate));
    if (!info) {
      continue;
    }
    int64_t missing = 0;
    int64_t known_positions = -1;
    for (KvCoder* coder : coders) {
      const PromptQuality* found = log_.Find(KeyOf(info->key, *coder));
      missing += found == nullptr ? 1 : 0;
      known_positions = found != nullptr ? found->positions : known_positions;
    }
    ++work.prompts;
    work.prompt_tokens += info->num_tokens;
    if (missing > 0) {
      ++work.loads;
      work.evaluations += missing;
      work.evaluated_tokens += missing * info->num_tokens;
      work.raw_prompts += info->on_disk ? 0 : 1;
      work.raw_tokens += info->on_disk ? 0 : info->num_tokens;
    }
    positions += known_positions >= 0 ? known_positions : corpus_.options().continuation_tokens;
  }
  return work;
}

Result<void> CellRun::RunBatch(std::span<KvCoder* const> coders, std::span<const size_t> candidates,
                               State& state) {
  const auto known = [&](uint64_t key, size_t coder) {
    return log_.Find(KeyOf(key, *coders[coder]));
  };
  std::vector<size_t> needed;  // candidates that some coder has not been measured on
  std::vector<std::optional<uint64_t>> keys;
  for (const size_t candidate : candidates) {
    KVIK_ASSIGN(const std::optional<RawPromptInfo> info, corpus_.Info(candidate));
    keys.push_back(info ? std::optional<uint64_t>(info->key) : std::nullopt);
    bool missing = false;
    for (size_t coder = 0; info && coder < coders.size(); ++coder) {
      missing = missing || (!state.failures[coder] && known(info->key, coder) == nullptr);
    }
    if (missing) {
      needed.push_back(candidate);
    }
  }
  const int64_t start_us = clock_.NowMicros();
  KVIK_ASSIGN(std::vector<std::optional<RawPrompt>> raw, corpus_.Get(needed));
  state.result.corpus_us += clock_.NowMicros() - start_us;
  size_t next = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const bool is_needed = next < needed.size() && needed[next] == candidates[i];
    const std::optional<RawPrompt> prompt =
        is_needed ? std::move(raw[next++]) : std::optional<RawPrompt>();
    if (!keys[i] || Enough(state.positions)) {
      continue;
    }
    KVIK_TRY(RunPrompt(coders, *keys[i], prompt ? &*prompt : nullptr, state));
  }
  return {};
}

Result<void> CellRun::RunPrompt(std::span<KvCoder* const> coders, uint64_t key,
                                const RawPrompt* prompt, State& state) {
  int64_t positions = 0;
  const auto take = [&](size_t coder, const PromptQuality& quality) {
    positions = std::max(positions, quality.positions);
    if (quality.positions > 0) {
      state.qualities[coder].push_back(quality);
    }
    state.progress += quality.positions;
    if (on_progress) {
      on_progress(state.progress);
    }
  };
  std::vector<size_t> missing;
  for (size_t coder = 0; coder < coders.size(); ++coder) {
    if (state.failures[coder]) {
      continue;
    }
    if (const PromptQuality* known = log_.Find(KeyOf(key, *coders[coder]))) {
      ++state.result.known;
      take(coder, *known);
    } else {
      missing.push_back(coder);
    }
  }
  KVIK_CHECK(prompt != nullptr || missing.empty());
  // A prompt that is answered by an end token alone has nothing to judge; that is kept, too.
  const bool judged = !missing.empty() && prompt->shape().num_continuation > 1;
  if (judged) {
    KVIK_TRY(state.evaluator->Load(
        *prompt, prompts_.item(static_cast<size_t>(prompt->shape().item)), missing.size()));
  }
  for (size_t first = 0; first < missing.size();) {
    const size_t count =
        judged ? std::min(state.evaluator->group_size(), missing.size() - first) : missing.size();
    const std::span<const size_t> group = std::span(missing).subspan(first, count);
    first += count;
    std::vector<Result<PromptQuality>> results(count, PromptQuality());
    if (judged) {
      std::vector<KvCoder*> together;
      for (const size_t coder : group) {
        together.push_back(coders[coder]);
      }
      results = state.evaluator->Evaluate(together);
    }
    for (size_t i = 0; i < count; ++i) {
      if (!results[i]) {
        state.failures[group[i]] = results[i].error();
        continue;
      }
      KVIK_TRY(log_.Add(KeyOf(key, *coders[group[i]]), *results[i]));
      ++state.result.evaluations;
      take(group[i], *results[i]);
    }
  }
  state.positions += positions;
  return {};
}

Result<CellRunResult> CellRun::Run(std::span<KvCoder* const> coders) {
  State state;
  KVIK_ASSIGN(state.evaluator,
              PromptEvaluator::Create(model_, pool_, tokenizer_, clock_, options_.quality));
  state.failures.resize(coders.size());
  state.qualities.resize(coders.size());
  size_t first = 0;
  while (first < prompts_.size() && !Enough(state.positions)) {
    // No more at once than it takes if all answers are long.
    const int64_t longest = corpus_.options().continuation_tokens;
    const int64_t missing = options_.positions > 0
                                ? (options_.positions - state.positions + longest - 1) / longest
                                : static_cast<int64_t>(prompts_.size());
    const size_t batch =
        std::min({corpus_.batch_prompts(), prompts_.size() - first, static_cast<size_t>(missing)});
    std::vector<size_t> candidates(batch);
    std::iota(candidates.begin(), candidates.end(), first);
    first += batch;
    KVIK_TRY(RunBatch(coders, candidates, state));
  }
  for (size_t coder = 0; coder < coders.size(); ++coder) {
    if (state.failures[coder]) {
      state.qualities[coder].clear();
      state.result.coders.emplace_back(*state.failures[coder]);
    } else if (state.qualities[coder].empty()) {
      return Err(ErrorCode::kNotFound,
                 "%s: no prompt has a position to judge: all are too long for the cell or the "
                 "context, or are answered by an end token",
                 CellName(prompts_.cell()).c_str());
    } else {
      state.result.coders.emplace_back(Summarize(state.qualities[coder], options_.seed));
    }
  }
  state.result.prompts = std::move(state.qualities);
  state.result.times = state.evaluator->times();
  return std::move(state.result);
}

Result<ModelSpeed> MeasureModelSpeed(model::Model& model, const Clock& clock,
                                     int64_t judged_together) {
  const kv::KvGeometry& geometry = model.kv_geometry();
  const int32_t prefill_rows =
      std::min(model.options().max_batch_rows, model.options().max_context_tokens);
  const auto judged_rows = static_cast<int32_t>(std::clamp<int64_t>(
      judged_together, 1, std::min(prefill_rows, model.options().max_logit_rows)));
  const auto blocks = static_cast<size_t>((prefill_rows + geometry.block_size_tokens - 1) /
                                          geometry.block_size_tokens);
  KVIK_ASSIGN(AlignedBuffer arena, AlignedBuffer::Create(blocks * geometry.bytes_per_block()));
  std::vector<BlockId> table(blocks);
  std::iota(table.begin(), table.end(), 0);
  const auto seconds = [&](int32_t rows, bool judged) {
    model::StepBatch batch;
    const std::vector<TokenId> tokens(static_cast<size_t>(rows), 0);
    batch.Add(tokens, 0, table, false);
    for (int32_t row = 0; judged && row < rows; ++row) {
      batch.logit_rows.push_back(row);
    }
    int64_t best_us = 0;
    for (int i = 0; i < 2; ++i) {  // the first one also touches the memory
      const int64_t start_us = clock.NowMicros();
      (void)model.Forward(batch, {arena.data(), arena.size_bytes()});
      const int64_t took_us = clock.NowMicros() - start_us;
      best_us = i == 0 ? took_us : std::min(best_us, took_us);
    }
    return static_cast<double>(std::max<int64_t>(best_us, 1)) * 1e-6;
  };
  return ModelSpeed{.prefill_tokens_per_s = prefill_rows / seconds(prefill_rows, false),
                    .judged_rows_per_s = judged_rows / seconds(judged_rows, true)};
}

}  // namespace kvik::eval
