// SPDX-License-Identifier: Apache-2.0
#include "app/eval_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "app/eval.h"

namespace kvik::app {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

eval::CellQuality Quality(double bits, double kl, double score_raw) {
  eval::CellQuality quality;
  quality.prompts = 4;
  quality.positions = 200;
  quality.sure_positions = 150;
  quality.bits_per_value = {bits, bits - 0.1, bits + 0.1};
  quality.cr = {16 / bits, 1, 2};
  quality.kl = {kl, kl / 2, kl * 2};
  quality.top1 = {0.95, 0.9, 0.99};
  quality.q = {0.98, 0.97, 1};
  quality.scored_prompts = score_raw >= 0 ? 4 : 0;
  quality.score = {0.5, 0.4, 0.6};
  quality.score_raw = {score_raw, 0, 1};
  return quality;
}

EvalReport Report(double score_raw) {
  EvalTable table;
  table.cell.workload = "qa";
  table.cell.target_tokens = 1024;
  table.measure = "answer in the output";
  table.text = "raw answer";
  table.rows.push_back({"kivi-4", "a -> b -> c", 1536, Quality(5, 0.002, score_raw)});
  table.rows.push_back({"kivi-2", "a -> b -> d", 1536, Quality(3, 0.05, score_raw)});
  table.rows.push_back({"lossless", "a -> b -> e", 1536, Quality(11, 1e-9, score_raw)});
  table.rows.push_back({"broken", "x", 16, Err(ErrorCode::kUnsupported, "no such head")});
  EvalReport report;
  report.model = "m.gguf";
  report.tables.push_back(table);
  return report;
}

TEST(EvalReport, JsonHasEveryNumberAndItsInterval) {
  const auto json = nlohmann::json::parse(EvalJson(Report(0.6)));
  ASSERT_EQ(json["results"].size(), 4U);
  const auto& row = json["results"][0];
  EXPECT_EQ(row["cell"], "qa:1K");
  EXPECT_EQ(row["bits_per_value"], 5);
  EXPECT_EQ(row["top1_low"], 0.9);
  EXPECT_EQ(row["q_low"], 0.97);
  EXPECT_EQ(row["intervals"]["kl"][1], 0.004);
  EXPECT_EQ(row["task"]["counts"], true);
  EXPECT_EQ(json["results"][3]["error"], "no such head");
  EXPECT_FALSE(nlohmann::json::parse(EvalJson(Report(-1)))["results"][0].contains("task"));
}

TEST(EvalReport, ATaskTheRawModelCannotDoDoesNotCount) {
  const std::vector<std::string> columns = {"kl", "top1", "task"};
  EXPECT_THAT(EvalText(Report(0.6), columns), HasSubstr("50.0 [40.0 60.0]"));
  const std::string poor = EvalText(Report(0.1), columns);
  EXPECT_THAT(poor, HasSubstr("(50.0)"));
  EXPECT_THAT(poor, HasSubstr("look at agreement"));
  EXPECT_EQ(nlohmann::json::parse(EvalJson(Report(0.1)))["results"][0]["task"]["counts"], false);
}

TEST(EvalReport, TheTableHasTheColumnsAskedFor) {
  const std::string text = EvalText(Report(-1), {"kl"});
  EXPECT_THAT(text, HasSubstr("qa:1K: 4 prompts, 200 positions"));
  EXPECT_THAT(text, HasSubstr("2.000 [1.000 4.000]  kivi-4"));
  EXPECT_THAT(text, HasSubstr("broken: no such head"));
  EXPECT_THAT(text, Not(HasSubstr("top-1")));
  EXPECT_THAT(EvalText(Report(-1), {"error", "ppl", "top1"}), HasSubstr("98.00 [97.00 100.00]"));
}

TEST(EvalReport, PlotsHaveASeriesAFamilyAndNothingExact) {
  const auto plots = EvalPlots(Report(-1));
  ASSERT_EQ(plots.size(), 1U);
  ASSERT_EQ(plots[0].series.size(), 1U);
  EXPECT_EQ(plots[0].series[0].name, "kivi");
  EXPECT_THAT(plots[0].series[0].points, ElementsAre(std::pair(3.0, 0.05), std::pair(5.0, 0.002)));
}

TEST(EvalReport, PipelinesAreCutAtCommasOutsideOfParentheses) {
  EXPECT_THAT(SplitPipelines(" lossless, a(b,c(d,e)) -> f ,,g"),
              ElementsAre("lossless", "a(b,c(d,e)) -> f", "g"));
  EXPECT_THAT(SplitPipelines(" , "), IsEmpty());
}

}  // namespace
}  // namespace kvik::app
