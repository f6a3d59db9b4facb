// SPDX-License-Identifier: Apache-2.0
#include "eval/coded_sequences.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "eval/raw_corpus.h"
#include "eval/testing/made_coders.h"
#include "eval/testing/tiny_setup.h"

namespace kvik::eval {
namespace {

using ::testing::HasSubstr;

class Sequences : public ::testing::Test {
 protected:
  explicit Sequences(int32_t rows = 32)
      : setup_({.num_heads = 3, .num_kv_heads = 1}, 2,
               {.isa = Isa::kScalar, .max_batch_rows = rows, .max_logit_rows = rows}) {
    const CellPrompts prompts =
        CellPrompts::Create(items_, {"math", 0}, 1, *setup_.tokenizer, setup_.chat_template.get())
            .value();
    const auto corpus =
        RawCorpus::Open(*setup_.model, *setup_.tokenizer, prompts, {.continuation_tokens = 20})
            .value();
    const size_t first[] = {0};
    raw_ = std::move(*corpus->Get(first).value()[0]);
  }
  CodedSequences Make(bool every_block, size_t count) {
    CodedSequences sequences(*setup_.model, setup_.pool, clock_, every_block);
    EXPECT_TRUE(sequences.Reset(*raw_, count, raw_->shape().num_tokens + 20));
    return sequences;
  }
  // All logits of a feed, row after row.
  using Logits = std::vector<std::vector<float>>;
  std::vector<Logits> Feed(CodedSequences& sequences, std::span<const FedTokens> feeds) {
    std::vector<Logits> logits;
    for (const FedTokens& feed : feeds) {
      logits.emplace_back(feed.tokens.size());
    }
    sequences.Feed(feeds, {.model_us = unused_us_, .visit_us = unused_us_},
                   [&](size_t feed, size_t row, std::span<const float> row_logits) {
                     logits[feed][row].assign(row_logits.begin(), row_logits.end());
                   });
    return logits;
  }

  std::vector<EvalItem> items_ = testing::MadeItems(2);
  testing::TinySetup setup_;
  ManualClock clock_;
  std::optional<RawPrompt> raw_;
  int64_t unused_us_ = 0;
};

TEST_F(Sequences, AreFedTogetherAsEachAloneAndTokenByToken) {
  const std::span<const TokenId> said = raw_->continuation();
  ASSERT_GE(said.size(), 16U);
  testing::RoundingCoder coarse(0);
  testing::DroppingCoder dropping(raw_->shape().head_dim, raw_->shape().num_kv_heads, 0);
  for (const bool every_block : {false, true}) {
    CodedSequences together = Make(every_block, 3);
    together.BeginRaw(0);
    together.Begin(1, coarse, unused_us_);
    together.Begin(2, dropping, unused_us_);
    // More rows than a step takes, of sequences in any order and of different lengths.
    const FedTokens feeds[] = {{.sequence = 2, .tokens = said.first(16)},
                               {.sequence = 0, .tokens = said.first(9)},
                               {.sequence = 1, .tokens = said.first(13)},
                               {.sequence = 2, .branch = 1, .tokens = said.subspan(2, 14)},
                               {.sequence = 0, .branch = 1, .tokens = said.subspan(1, 5)}};
    const std::vector<Logits> logits = Feed(together, feeds);
    EXPECT_NE(logits[0][0], logits[1][0]);
    EXPECT_NE(logits[2][0], logits[1][0]);
    for (size_t feed = 0; feed < std::size(feeds); ++feed) {
      CodedSequences alone = Make(every_block, 1);
      KvCoder* const coders[] = {nullptr, &coarse, &dropping};
      if (KvCoder* coder = coders[feeds[feed].sequence]) {
        alone.Begin(0, *coder, unused_us_);
      } else {
        alone.BeginRaw(0);
      }
      for (size_t i = 0; i < feeds[feed].tokens.size(); ++i) {
        const FedTokens one[] = {{.first = i, .tokens = feeds[feed].tokens.subspan(i, 1)}};
        EXPECT_EQ(Feed(alone, one)[0][0], logits[feed][i]) << "feed " << feed << ", token " << i;
      }
    }
    // Back at the end of the prompt, and a sequence begun anew has nothing of the coder before.
    together.Rewind(2);
    EXPECT_EQ(Feed(together, std::span(feeds).first(1))[0], logits[0]);
    together.BeginRaw(2);
    const FedTokens raw[] = {{.sequence = 2, .tokens = said.first(9)}};
    EXPECT_EQ(Feed(together, raw)[0], logits[1]);
  }
}

TEST_F(Sequences, KnowWhetherACoderChangedAnything) {
  CodedSequences sequences = Make(false, 1);
  testing::IdentityCoder identity;
  testing::RoundingCoder rounding(0);
  testing::RoundingCoder nothing_to_round(7);
  testing::DroppingNothingCoder dropping;
  const auto unchanged = [&](KvCoder& coder) {
    sequences.Begin(0, coder, unused_us_);
    return sequences.unchanged(0);
  };
  EXPECT_TRUE(unchanged(identity));
  EXPECT_FALSE(unchanged(rounding));
  EXPECT_TRUE(unchanged(nothing_to_round));
  EXPECT_FALSE(unchanged(dropping));
}

TEST_F(Sequences, AFailureIsOfOneSequence) {
  CodedSequences sequences = Make(true, 2);
  testing::PromptOnlyCoder late;
  testing::IdentityCoder identity;
  sequences.Begin(0, late, unused_us_);
  sequences.Begin(1, identity, unused_us_);
  EXPECT_FALSE(sequences.error(0));
  const auto tokens = raw_->continuation().first(17);  // a block and more
  const FedTokens feeds[] = {{.sequence = 0, .tokens = tokens}, {.sequence = 1, .tokens = tokens}};
  const std::vector<Logits> logits = Feed(sequences, feeds);
  ASSERT_TRUE(sequences.error(0));
  EXPECT_THAT(sequences.error(0)->message, HasSubstr("prompt only: not behind the prompt"));
  EXPECT_FALSE(sequences.error(1));
  EXPECT_TRUE(logits[0].back().empty());
  EXPECT_FALSE(logits[1].back().empty());
  EXPECT_GT(sequences.values(1), sequences.values(0));
  // The next coder in its place does not inherit it.
  sequences.Begin(0, identity, unused_us_);
  EXPECT_FALSE(sequences.error(0));
}

}  // namespace
}  // namespace kvik::eval
