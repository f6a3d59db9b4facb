// SPDX-License-Identifier: Apache-2.0
#include "eval/task_score.h"

#include <gtest/gtest.h>

namespace kvik::eval {
namespace {

EvalItem Item(const char* workload, const char* reference, std::vector<std::string> answers = {}) {
  return {.workload = workload,
          .prompt = "p",
          .context = "",
          .title = "",
          .reference = reference,
          .answers = std::move(answers)};
}

TEST(TaskScore, TheMeasureFollowsFromTheWorkloadAndWhatThereIs) {
  EXPECT_EQ(MeasureOf(Item("math", "so\n#### 18")), TaskMeasure::kNumber);
  EXPECT_EQ(MeasureOf(Item("math", "no number")), TaskMeasure::kNone);
  EXPECT_EQ(MeasureOf(Item("qa", "", {"x"})), TaskMeasure::kContainsAnswer);
  EXPECT_EQ(MeasureOf(Item("summarization", "text")), TaskMeasure::kRougeL);
  EXPECT_EQ(MeasureOf(Item("code", "return 1")), TaskMeasure::kNone);
}

TEST(TaskScore, NumbersAreComparedAsNumbers) {
  const EvalItem item = Item("math", "<<9*2=18>>18 dollars.\n#### 1,018");
  EXPECT_EQ(ScoreAnswer(item, "It is $1018."), 1);
  EXPECT_EQ(ScoreAnswer(item, "#### 1,018.00\n5"), 1);
  EXPECT_EQ(ScoreAnswer(item, "1018 and then 5"), 0);
  EXPECT_EQ(ScoreAnswer(item, "-1018"), 0);
  EXPECT_EQ(ScoreAnswer(item, "101.8"), 0);
  EXPECT_EQ(ScoreAnswer(item, ""), 0);
  EXPECT_EQ(ScoreAnswer(Item("math", "#### 2.5"), "2.50 miles"), 1);
  EXPECT_EQ(ScoreAnswer(Item("math", "#### 10"), "10"), 1);
}

TEST(TaskScore, AnswersAreFoundWordByWord) {
  const EvalItem item = Item("qa", "", {"May 18, 2018", "R\xC3\xB6ntgen"});
  EXPECT_EQ(ScoreAnswer(item, "on may 18 2018!"), 1);
  EXPECT_EQ(ScoreAnswer(item, "Wilhelm R\xC3\xB6ntgen."), 1);
  EXPECT_EQ(ScoreAnswer(item, "on May 18"), 0);
  EXPECT_EQ(ScoreAnswer(item, "May 18, 20180"), 0);
  EXPECT_EQ(ScoreAnswer(Item("qa", "", {"..."}), "..."), 0);
}

TEST(TaskScore, RougeIsTheLongestCommonSubsequence) {
  const EvalItem item = Item("summarization", "the cat sat on the mat");
  EXPECT_EQ(ScoreAnswer(item, "The cat sat, on the mat."), 1);
  EXPECT_EQ(ScoreAnswer(item, "a dog"), 0);
  // "the cat on mat": 4 of 6 and 4 of 5 words.
  EXPECT_DOUBLE_EQ(ScoreAnswer(item, "the cat lies on mat"), 2.0 * 4 / (6 + 5));
  EXPECT_EQ(ScoreAnswer(item, ""), 0);
}

}  // namespace
}  // namespace kvik::eval
