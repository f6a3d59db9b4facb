// SPDX-License-Identifier: Apache-2.0
#include "eval/quality.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "attention/kv_pages.h"
#include "base/testing/temp_path.h"
#include "eval/cell_run.h"
#include "eval/raw_corpus.h"
#include "eval/results_log.h"
#include "eval/task_score.h"
#include "eval/testing/made_coders.h"
#include "eval/testing/tiny_setup.h"
#include "text/detokenizer.h"

namespace kvik::eval {
namespace {

using testing::DroppingCoder;
using testing::DroppingNothingCoder;
using testing::FailingCoder;
using ::testing::HasSubstr;
using testing::IdentityCoder;
using testing::PromptOnlyCoder;
using testing::RoundingCoder;

class Quality : public ::testing::Test {
 protected:
  struct Bench {
    explicit Bench(int threads = 1, int32_t logit_rows = 64)
        : setup({.num_heads = 3, .num_kv_heads = 1}, threads,
                {.isa = Isa::kScalar,
                 .max_batch_rows = std::max(64, logit_rows),
                 .max_logit_rows = logit_rows}) {}
    std::unique_ptr<PromptEvaluator> Evaluator(const QualityOptions& options) {
      return PromptEvaluator::Create(*setup.model, setup.pool, *setup.tokenizer, clock, options)
          .value();
    }
    RawPrompt Raw(const std::vector<EvalItem>& items, const Cell& cell) {
      const CellPrompts prompts =
          CellPrompts::Create(items, cell, 1, *setup.tokenizer, setup.chat_template.get()).value();
      const auto corpus = RawCorpus::Open(*setup.model, *setup.tokenizer, prompts,
                                          {.continuation_tokens = kAnswer, .query_positions = 2})
                              .value();
      const size_t first[] = {0};
      return std::move(*corpus->Get(first).value()[0]);
    }
    testing::TinySetup setup;
    ManualClock clock;
  };
  static Result<PromptQuality> Measure(PromptEvaluator& evaluator, KvCoder& coder) {
    KvCoder* one[] = {&coder};
    return evaluator.Evaluate(one)[0];
  }
  static constexpr int32_t kAnswer = 24;
  std::vector<EvalItem> items_ = testing::MadeItems(6);
};

// As it is defined, one row at a time: other rows in the pages, then the raw run's own tokens.
struct Naive {
  double kl = 0;
  int64_t agreeing = 0;
};
Naive Recompute(model::Model& model, const RawPrompt& raw, int bits) {
  const kv::KvGeometry& geometry = model.kv_geometry();
  const RawShape& shape = raw.shape();
  const auto blocks = static_cast<size_t>(
      (shape.num_tokens + shape.num_continuation) / geometry.block_size_tokens + 1);
  auto arena = AlignedBuffer::Create(blocks * geometry.bytes_per_block()).value();
  const std::span<std::byte> bytes(arena.data(), arena.size_bytes());
  std::vector<BlockId> table(blocks);
  std::iota(table.begin(), table.end(), 0);
  std::vector<std::vector<float>> logits[2];
  for (const bool coded : {false, true}) {
    for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
      for (const kv::KvPart part : {kv::KvPart::kKey, kv::KvPart::kValue}) {
        const std::span<const Bf16> rows = raw.rows(layer, part);
        for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
          for (int32_t pos = 0; pos < shape.num_tokens; ++pos) {
            std::vector<float> row;
            for (int32_t d = 0; d < shape.head_dim; ++d) {
              const Bf16 value =
                  rows[static_cast<size_t>((head * shape.num_tokens + pos) * shape.head_dim + d)];
              row.push_back(ToFloat(coded ? RoundingCoder::Round(value, bits) : value));
            }
            attention::WritePage(geometry, bytes,
                                 {.block = pos / geometry.block_size_tokens,
                                  .layer = layer,
                                  .part = part,
                                  .kv_head = head,
                                  .first_slot = pos % geometry.block_size_tokens},
                                 row);
          }
        }
      }
    }
    for (size_t i = 0; i + 1 < raw.continuation().size(); ++i) {
      model::StepBatch batch;
      batch.Add(raw.continuation().subspan(i, 1), shape.num_tokens + static_cast<int32_t>(i), table,
                true);
      const model::LogitsView view = model.Forward(batch, bytes);
      logits[coded ? 1 : 0].emplace_back(view.Row(0).begin(), view.Row(0).end());
    }
  }
  Naive naive;
  for (size_t i = 0; i < logits[0].size(); ++i) {
    const auto log_softmax = [](const std::vector<float>& row) {
      double sum = 0;
      for (const float x : row) {
        sum += std::exp(static_cast<double>(x));
      }
      std::vector<double> out;
      for (const float x : row) {
        out.push_back(static_cast<double>(x) - std::log(sum));
      }
      return out;
    };
    const auto p = log_softmax(logits[0][i]);
    const auto q = log_softmax(logits[1][i]);
    for (size_t j = 0; j < p.size(); ++j) {
      naive.kl += std::exp(p[j]) * (p[j] - q[j]);
    }
    naive.agreeing += Argmax(logits[0][i]) == Argmax(logits[1][i]) ? 1 : 0;
  }
  return naive;
}

TEST_F(Quality, IsWhatItIsDefinedToBe) {
  Bench bench;
  for (const Cell& cell : {Cell{"math", 0}, Cell{"qa", 500}}) {
    const RawPrompt raw = bench.Raw(items_, cell);
    ASSERT_GT(raw.shape().num_continuation, 10);
    const auto evaluator = bench.Evaluator({});
    ASSERT_TRUE(evaluator->Load(raw, items_[static_cast<size_t>(raw.shape().item)]));
    RoundingCoder coder(1);
    const PromptQuality quality = Measure(*evaluator, coder).value();
    const Naive naive = Recompute(*bench.setup.model, raw, 1);
    EXPECT_EQ(quality.positions, raw.shape().num_continuation - 1);
    EXPECT_EQ(quality.agreeing, naive.agreeing);
    EXPECT_NEAR(quality.kl_nats, naive.kl, 1e-5 * naive.kl + 1e-6);
    EXPECT_GT(naive.kl, 1e-4);
    EXPECT_LE(quality.sure_positions, quality.positions);
    EXPECT_GT(quality.key_error, 0);
    EXPECT_GT(quality.attention.score_difference, 0);
    EXPECT_GT(quality.attention.output_difference, 0);
    EXPECT_NE(quality.text_nll, quality.text_nll_raw);
    // A math item has a reference, and it is what perplexity is about.
    EXPECT_EQ(quality.text_positions,
              cell.workload == "math" ? raw.shape().num_reference - 1 : quality.positions);
  }
}

TEST_F(Quality, NothingChangesWhenKvComesBackAsItWas) {
  Bench bench;
  for (const bool every_block : {false, true}) {
    const RawPrompt raw = bench.Raw(items_, {"math", 0});
    const EvalItem& item = items_[static_cast<size_t>(raw.shape().item)];
    const auto evaluator = bench.Evaluator(
        {.every_block = every_block, .score_tasks = true, .answer_tokens = kAnswer});
    ASSERT_TRUE(evaluator->Load(raw, item));
    // A worse coder before it leaves no trace.
    RoundingCoder coarse(0);
    ASSERT_TRUE(Measure(*evaluator, coarse));
    IdentityCoder coder;
    const PromptQuality quality = Measure(*evaluator, coder).value();
    EXPECT_EQ(quality.agreeing, quality.positions);
    EXPECT_EQ(quality.sure_agreeing, quality.sure_positions);
    EXPECT_LT(quality.kl_nats, 1e-6);
    EXPECT_NEAR(quality.text_nll, quality.text_nll_raw, 1e-9);
    EXPECT_EQ(quality.key_error + quality.value_error, 0);
    EXPECT_EQ(quality.attention.score_difference + quality.attention.output_difference, 0);
    EXPECT_EQ(quality.scored, 1);
    EXPECT_EQ(quality.score, quality.score_raw);
    const RawShape& shape = raw.shape();
    const int64_t row = int64_t{2} * shape.num_layers * shape.num_kv_heads * shape.head_dim;
    // With every block: positions up to the last full block of prompt and answer.
    const int64_t sealed = (shape.num_tokens + shape.num_continuation - 1) / 16 * 16;
    const int64_t coded = every_block ? sealed : shape.num_tokens;
    EXPECT_EQ(quality.prompt_values, row * shape.num_tokens);
    EXPECT_EQ(quality.values, row * std::max<int64_t>(coded, shape.num_tokens));
    EXPECT_EQ(quality.bytes, 3 * quality.values);
  }
}

void ExpectEqual(const PromptQuality& a, const PromptQuality& b) {
  EXPECT_EQ(PrintResult(0, a), PrintResult(0, b));
}

TEST_F(Quality, DoesNotDependOnThreadsOrOnHowManyRowsTheModelTakes) {
  for (const bool every_block : {false, true}) {
    const QualityOptions options{
        .every_block = every_block, .score_tasks = true, .answer_tokens = kAnswer};
    std::vector<PromptQuality> results;
    for (const auto& [threads, rows] : std::vector<std::pair<int, int32_t>>{{1, 64}, {2, 9}}) {
      Bench bench(threads, rows);
      const RawPrompt raw = bench.Raw(items_, {"qa", 300});
      const auto evaluator = bench.Evaluator(options);
      ASSERT_TRUE(evaluator->Load(raw, items_[static_cast<size_t>(raw.shape().item)]));
      RoundingCoder coder(2);
      results.push_back(Measure(*evaluator, coder).value());
    }
    ExpectEqual(results[0], results[1]);
  }
}

TEST_F(Quality, WhatDecodesOnCodedBlocksIsAnswerAndScoredAsSuch) {
  Bench bench;
  const RawPrompt raw = bench.Raw(items_, {"qa", 0});
  EvalItem item = items_[static_cast<size_t>(raw.shape().item)];
  // The answer on coded KV, generated from the start.
  RoundingCoder coder(0);
  const auto plain = bench.Evaluator({});
  ASSERT_TRUE(plain->Load(raw, item));
  const PromptQuality quality = Measure(*plain, coder).value();
  ASSERT_LT(quality.agreeing, quality.positions) << "the coder changes nothing: a poor test";
  EXPECT_EQ(quality.scored, 0);
  // Whatever it says beyond the raw answer cannot be in the raw answer.
  const auto text = [&](std::span<const TokenId> tokens) {
    return text::Decode(*bench.setup.tokenizer, tokens);
  };
  item.answers = {text(raw.continuation())};
  if (ScoreAnswer(item, item.answers[0]) == 1) {
    const auto scored = bench.Evaluator({.score_tasks = true, .answer_tokens = kAnswer});
    ASSERT_TRUE(scored->Load(raw, item));
    const PromptQuality with = Measure(*scored, coder).value();
    EXPECT_EQ(with.scored, 1);
    EXPECT_EQ(with.score_raw, 1);
    EXPECT_EQ(with.score, 0);
    EXPECT_EQ(with.kl_nats, quality.kl_nats);
    EXPECT_EQ(with.text_nll, quality.text_nll);
  }
}

TEST_F(Quality, DroppedTokensAreOutOfAttentionWhateverTheirRowsHold) {
  Bench bench;
  for (const bool every_block : {false, true}) {
    const RawPrompt raw = bench.Raw(items_, {"math", 0});
    const EvalItem& item = items_[static_cast<size_t>(raw.shape().item)];
    const auto evaluator = bench.Evaluator(
        {.every_block = every_block, .score_tasks = true, .answer_tokens = kAnswer});
    ASSERT_TRUE(evaluator->Load(raw, item));
    DroppingCoder zeros(raw.shape().head_dim, raw.shape().num_kv_heads, 0);
    DroppingCoder huge(raw.shape().head_dim, raw.shape().num_kv_heads, 0x4700);
    const PromptQuality a = Measure(*evaluator, zeros).value();
    const PromptQuality b = Measure(*evaluator, huge).value();
    EXPECT_GT(a.kl_nats, 1e-6);
    EXPECT_EQ(a.kl_nats, b.kl_nats);
    EXPECT_EQ(a.text_nll, b.text_nll);
    EXPECT_EQ(a.attention.output_difference, b.attention.output_difference);
    EXPECT_GT(a.attention.output_difference, 0);
    EXPECT_EQ(a.attention.score_difference, 0);  // of what is left
    // Nothing stays dropped.
    IdentityCoder identity;
    EXPECT_LT(Measure(*evaluator, identity).value().kl_nats, 1e-6);
  }
}

TEST_F(Quality, FailuresSayWhoFailed) {
  Bench bench;
  const RawPrompt raw = bench.Raw(items_, {"math", 0});
  const EvalItem& item = items_[static_cast<size_t>(raw.shape().item)];
  const auto evaluator = bench.Evaluator({});
  ASSERT_TRUE(evaluator->Load(raw, item));
  FailingCoder coder;
  const auto failed = Measure(*evaluator, coder);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(failed.error().message, HasSubstr("failing: not this layer"));

  RawPrompt other = bench.Raw(items_, {"math", 0});
  other.mutable_continuation()[3] ^= 1;
  EXPECT_EQ(evaluator->Load(other, item).error().code, ErrorCode::kCorrupt);
}

TEST_F(Quality, OfAGroupIsThatOfEachAlone) {
  for (const bool every_block : {false, true}) {
    for (const Cell& cell : {Cell{"math", 0}, Cell{"qa", 300}}) {
      SCOPED_TRACE(CellName(cell) + (every_block ? ", every block" : ""));
      const QualityOptions options{
          .every_block = every_block, .score_tasks = true, .answer_tokens = kAnswer};
      Bench bench(1, 400);
      const RawPrompt raw = bench.Raw(items_, cell);
      const EvalItem& item = items_[static_cast<size_t>(raw.shape().item)];
      RoundingCoder coarse(0);
      RoundingCoder fine(2);
      IdentityCoder identity;
      FailingCoder failing;
      PromptOnlyCoder late;
      DroppingCoder dropping(raw.shape().head_dim, raw.shape().num_kv_heads, 0x4700);
      KvCoder* coders[] = {&coarse, &failing, &dropping, &identity, &late, &fine};
      const size_t count = std::size(coders);
      const auto together = bench.Evaluator(options);
      ASSERT_TRUE(together->Load(raw, item, count));
      ASSERT_EQ(together->group_size(), count);
      const auto results = together->Evaluate(coders);
      // A sequence takes the place of another coder's.
      std::vector<KvCoder*> reversed(std::rbegin(coders), std::rend(coders));
      const auto again = together->Evaluate(reversed);
      ASSERT_EQ(results.size(), count);
      ASSERT_EQ(again.size(), count);
      const auto alone = bench.Evaluator(options);
      ASSERT_TRUE(alone->Load(raw, item));
      for (size_t i = 0; i < count; ++i) {
        SCOPED_TRACE(coders[i]->name());
        const auto one = Measure(*alone, *coders[i]);
        const bool fails = coders[i] == &failing || (every_block && coders[i] == &late);
        ASSERT_EQ(one.has_value(), !fails);
        for (const auto* result : {&results[i], &again[count - 1 - i]}) {
          ASSERT_EQ(result->has_value(), !fails);
          if (fails) {
            EXPECT_EQ(result->error().message, one.error().message);
          } else {
            ExpectEqual(**result, *one);
          }
        }
      }
    }
  }
}

TEST_F(Quality, GroupsAreWhatFitsAStep) {
  Bench bench;  // of 64 rows
  const RawPrompt raw = bench.Raw(items_, {"qa", 0});
  const EvalItem& item = items_[static_cast<size_t>(raw.shape().item)];
  const auto fitting = static_cast<size_t>(64 / (raw.shape().num_continuation - 1));
  ASSERT_GT(fitting, 1U);
  const auto evaluator = bench.Evaluator({});
  ASSERT_TRUE(evaluator->Load(raw, item, 100));
  EXPECT_EQ(evaluator->group_size(), fitting);
  ASSERT_TRUE(evaluator->Load(raw, item, 1));
  EXPECT_EQ(evaluator->group_size(), 1U);
  const auto sealing = bench.Evaluator({.every_block = true});
  ASSERT_TRUE(sealing->Load(raw, item, 100));
  EXPECT_EQ(sealing->group_size(), 64 / 16U);
}

// The model does not run for a coder that gives back every bit; what it would say is known.
TEST_F(Quality, WhatIsNotComputedIsWhatComputingItGives) {
  Bench bench;
  for (const Cell& cell : {Cell{"math", 0}, Cell{"qa", 300}}) {
    const RawPrompt raw = bench.Raw(items_, cell);
    EvalItem item = items_[static_cast<size_t>(raw.shape().item)];
    item.answers = {text::Decode(*bench.setup.tokenizer, raw.continuation())};
    const auto evaluator = bench.Evaluator({.score_tasks = true, .answer_tokens = kAnswer});
    ASSERT_TRUE(evaluator->Load(raw, item));
    IdentityCoder skipped;
    DroppingNothingCoder computed;
    ExpectEqual(Measure(*evaluator, skipped).value(), Measure(*evaluator, computed).value());
  }
}

class Cells : public Quality {
 protected:
  Result<CellRunResult> Run(const std::string& results, std::vector<KvCoder*> coders,
                            const CellRunOptions& options,
                            std::vector<int64_t>* progress = nullptr) {
    Bench bench;
    const CellPrompts prompts = CellPrompts::Create(items_, {"math", 0}, 1, *bench.setup.tokenizer,
                                                    bench.setup.chat_template.get())
                                    .value();
    const auto corpus = RawCorpus::Open(*bench.setup.model, *bench.setup.tokenizer, prompts,
                                        {.continuation_tokens = kAnswer})
                            .value();
    const auto log = ResultsLog::Open(results).value();
    CellRun run(*bench.setup.model, bench.setup.pool, *bench.setup.tokenizer, bench.clock, prompts,
                *corpus, *log, options);
    if (progress != nullptr) {
      run.on_progress = [&](int64_t positions) { progress->push_back(positions); };
    }
    planned_ = run.Plan(coders).value();
    return run.Run(coders);
  }
  CellWork planned_;  // before the last run
};

TEST_F(Cells, ArePromptsUntilThereAreEnoughPositions) {
  IdentityCoder identity;
  RoundingCoder coarse(0);
  std::vector<int64_t> progress;
  const auto all = Run("", {&identity, &coarse}, {.seed = 3}, &progress);
  ASSERT_TRUE(all) << all.error().message;
  EXPECT_EQ(all->coders[0]->prompts, 6);
  EXPECT_EQ(all->coders[0]->q.value, 1);
  EXPECT_EQ(all->coders[0]->bits_per_value.value, 24);
  EXPECT_GT(all->coders[1]->kl.value, all->coders[0]->kl.value);
  EXPECT_EQ(all->evaluations, 12);
  EXPECT_EQ(progress.size(), 12U);
  EXPECT_EQ(progress.back(), 2 * all->coders[0]->positions);
  const auto some = Run("", {&identity}, {.positions = 2 * kAnswer, .seed = 3});
  ASSERT_TRUE(some);
  EXPECT_GE(some->coders[0]->positions, 2 * kAnswer);
  EXPECT_LT(some->coders[0]->positions, 3 * kAnswer);
}

TEST_F(Cells, WhatIsKnownIsNotMeasuredAgain) {
  const std::string path = kvik::testing::TempPath("results.jsonl");
  RoundingCoder fine(3);
  RoundingCoder coarse(0);
  IdentityCoder identity;
  const auto first = Run(path, {&fine}, {.positions = 3 * kAnswer}).value();
  EXPECT_GT(first.evaluations, 0);
  const auto second = Run(path, {&fine, &coarse, &identity}, {.positions = 3 * kAnswer}).value();
  EXPECT_EQ(second.known, first.evaluations);
  EXPECT_EQ(planned_.evaluations, second.evaluations);
  EXPECT_EQ(planned_.raw_prompts, planned_.loads);  // nothing is kept here
  EXPECT_EQ(second.evaluations, 2 * first.evaluations);
  EXPECT_EQ(identity.calls, 2 * first.evaluations);  // of two layers each
  EXPECT_EQ(second.coders[0]->kl.value, first.coders[0]->kl.value);
  EXPECT_EQ(second.coders[0]->kl.low, first.coders[0]->kl.low);
  const auto third = Run(path, {&identity}, {.positions = 3 * kAnswer}).value();
  EXPECT_EQ(third.evaluations, 0);
  EXPECT_EQ(planned_.loads, 0);
  EXPECT_EQ(planned_.prompts, third.known);
  // Other options are other measurements.
  const auto other =
      Run(path, {&identity}, {.positions = 3 * kAnswer, .quality = {.every_block = true}}).value();
  EXPECT_EQ(other.known, 0);
}

TEST_F(Cells, ACoderThatFailsDoesNotStopTheOthers) {
  IdentityCoder identity;
  FailingCoder failing;
  const auto run = Run("", {&failing, &identity}, {});
  ASSERT_TRUE(run);
  EXPECT_EQ(run->coders[0].error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(run->coders[1]->prompts, 6);
  EXPECT_EQ(run->evaluations, 6);
}

}  // namespace
}  // namespace kvik::eval
