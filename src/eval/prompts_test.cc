// SPDX-License-Identifier: Apache-2.0
#include "eval/prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "eval/testing/tiny_setup.h"
#include "text/detokenizer.h"

namespace kvik::eval {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class Prompts : public ::testing::Test {
 protected:
  CellPrompts Make(const Cell& cell, uint64_t seed = 1) {
    return CellPrompts::Create(items_, cell, seed, *setup_.tokenizer, setup_.chat_template.get())
        .value();
  }
  std::string Text(const EvalPrompt& prompt) const {
    return text::Decode(*setup_.tokenizer, prompt.tokens, {.skip_special = false});
  }
  testing::TinySetup setup_;
  std::vector<EvalItem> items_ = testing::MadeItems(40);
};

TEST_F(Prompts, EveryItemOfTheWorkloadIsACandidateOnceInASeededOrder) {
  const CellPrompts prompts = Make({"math", 0});
  ASSERT_EQ(prompts.size(), 40U);
  std::vector<size_t> order;
  for (size_t i = 0; i < prompts.size(); ++i) {
    order.push_back((*prompts.Build(i).value()).item);
    EXPECT_EQ(items_[order.back()].workload, "math");
  }
  EXPECT_EQ(std::set<size_t>(order.begin(), order.end()).size(), 40U);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  EXPECT_NE((*Make({"math", 0}, 2).Build(0).value()).item * 41 +
                (*Make({"math", 0}, 2).Build(1).value()).item,
            order[0] * 41 + order[1]);
  EXPECT_EQ(CellPrompts::Create(items_, {"none", 0}, 1, *setup_.tokenizer, nullptr).error().code,
            ErrorCode::kNotFound);
}

TEST_F(Prompts, ShortCellsTakeItemsAsTheyAreAndLeaveLongOnesOut) {
  const CellPrompts whole = Make({"math", 0});
  const CellPrompts cut = Make({"math", 100});
  int left_out = 0;
  for (size_t i = 0; i < cut.size(); ++i) {
    const auto as_is = whole.Build(i).value();
    const auto prompt = cut.Build(i).value();
    EXPECT_EQ(prompt.has_value(), as_is->tokens.size() <= 200);
    left_out += prompt ? 0 : 1;
    if (prompt) {
      EXPECT_EQ(prompt->tokens, as_is->tokens);
      EXPECT_THAT(Text(*prompt), HasSubstr(items_[prompt->item].prompt));
      EXPECT_THAT(Text(*prompt), HasSubstr("<|im_start|>assistant"));
    }
  }
  EXPECT_LT(left_out, 40);
}

TEST_F(Prompts, LongCellsShowWorkedExamplesButNeverTheItemsOwn) {
  const CellPrompts prompts = Make({"math", 1024});
  for (size_t i = 0; i < 10; ++i) {
    const auto prompt = prompts.Build(i).value();
    ASSERT_TRUE(prompt);
    EXPECT_LE(prompt->tokens.size(), 1024U);
    EXPECT_GT(prompt->tokens.size(), 850U);
    const std::string text = Text(*prompt);
    const EvalItem& item = items_[prompt->item];
    EXPECT_EQ(text.find(item.prompt), text.rfind(item.prompt));
    EXPECT_THAT(text, Not(HasSubstr(item.reference.substr(item.reference.find('\n')) + "<")));
    EXPECT_THAT(text, Not(HasSubstr("<<")));
    EXPECT_THAT(text, HasSubstr("#### "));
    EXPECT_EQ(text::Decode(*setup_.tokenizer, prompt->reference).find("<<"), std::string::npos);
    EXPECT_EQ(prompts.Build(i).value()->tokens, prompt->tokens);
  }
}

TEST_F(Prompts, ThePassageWithTheAnswerStandsAtASeededPlaceAmongOthers) {
  const CellPrompts prompts = Make({"qa", 1024});
  std::set<int> places;
  for (size_t i = 0; i < 20; ++i) {
    const auto prompt = prompts.Build(i).value();
    ASSERT_TRUE(prompt);
    EXPECT_LE(prompt->tokens.size(), 1024U);
    EXPECT_GT(prompt->tokens.size(), 850U);
    const std::string text = Text(*prompt);
    const EvalItem& item = items_[prompt->item];
    const size_t at = text.find(item.title + ": " + item.context);
    ASSERT_NE(at, std::string::npos);
    EXPECT_EQ(text.find(item.title + ": " + item.context, at + 1), std::string::npos);
    places.insert(static_cast<int>(4 * at / text.size()));
    EXPECT_TRUE(prompt->reference.empty());
  }
  EXPECT_EQ(places.size(), 4U);
  const auto alone = Make({"qa", 250}).Build(0).value();
  EXPECT_THAT(Text(*alone), Not(HasSubstr("Passage 2")));
}

TEST_F(Prompts, TextsToSummariseAreCutOrGetExamples) {
  const CellPrompts prompts = Make({"summarization", 300});
  const CellPrompts whole = Make({"summarization", 0});
  int cut = 0, filled = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto prompt = prompts.Build(i).value();
    const size_t own = whole.Build(i).value()->tokens.size();
    ASSERT_TRUE(prompt);
    EXPECT_LE(prompt->tokens.size(), 300U);
    EXPECT_THAT(Text(*prompt), HasSubstr("summary of the text above"));
    cut += own > 300 ? 1 : 0;
    filled += own < 300 && prompt->tokens.size() > own ? 1 : 0;
  }
  EXPECT_GT(cut, 0);
  EXPECT_GT(filled, 0);
}

TEST_F(Prompts, AModelWithoutATemplateGetsChatMl) {
  const auto prompts = CellPrompts::Create(items_, {"other", 0}, 1, *setup_.tokenizer, nullptr);
  ASSERT_TRUE(prompts);
  const auto prompt = prompts->Build(0).value();
  EXPECT_THAT(Text(*prompt), HasSubstr("<|im_start|>user"));
}

}  // namespace
}  // namespace kvik::eval
