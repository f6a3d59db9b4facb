// SPDX-License-Identifier: Apache-2.0
#include "eval/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/testing/temp_path.h"
#include "eval/cell.h"

namespace kvik::eval {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Dataset, ReadsEveryMemberAndIgnoresOthers) {
  const auto items = ParseEvalItems(
      "{\"workload\": \"qa\", \"prompt\": \"who\", \"context\": \"c\", \"title\": \"t\", "
      "\"answers\": [\"a\", \"b\"], \"more\": [1]}\r\n\n"
      "{\"workload\": \"math\", \"prompt\": \"p\", \"reference\": \"r\", \"context\": null}",
      "made");
  ASSERT_TRUE(items) << items.error().message;
  ASSERT_EQ(items->size(), 2U);
  const EvalItem& qa = items->front();
  EXPECT_EQ(qa.workload + qa.prompt + qa.context + qa.title + qa.reference, "qawhoct");
  EXPECT_THAT(qa.answers, ElementsAre("a", "b"));
  EXPECT_EQ((*items)[1].reference, "r");
  EXPECT_EQ((*items)[1].context, "");
}

TEST(Dataset, ErrorsNameTheLineAndTheMember) {
  const auto message = [](const char* line) {
    const auto items =
        ParseEvalItems(std::string("{\"workload\":\"a\",\"prompt\":\"b\"}\n") + line, "made");
    EXPECT_FALSE(items);
    return items ? "" : items.error().message;
  };
  EXPECT_THAT(message("{\"workload\": \"a\"}"), HasSubstr("made:2: has no \"prompt\""));
  EXPECT_THAT(message("{\"workload\": \"a\", \"prompt\": \"\"}"), HasSubstr("\"prompt\""));
  EXPECT_THAT(message("{\"workload\": 1, \"prompt\": \"b\"}"), HasSubstr("\"workload\""));
  EXPECT_THAT(message("{\"workload\": \"a\", \"prompt\": \"b\", \"answers\": \"c\"}"),
              HasSubstr("\"answers\""));
  EXPECT_THAT(message("{\"workload\": \"a\", \"prompt\": \"b\", \"answers\": [1]}"),
              HasSubstr("\"answers\""));
  EXPECT_THAT(message("[]"), HasSubstr("no JSON object"));
  EXPECT_THAT(message("{"), HasSubstr("made:2: is not valid JSON"));
}

TEST(Dataset, AFolderIsAllItsFilesInOrder) {
  const std::string folder = kvik::testing::TempPath("data");
  std::filesystem::create_directories(folder);
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder + "/" + name) << text;
  };
  EXPECT_EQ(LoadEvalData(folder).error().code, ErrorCode::kNotFound);
  write("b.jsonl", "{\"workload\": \"b\", \"prompt\": \"2\"}\n");
  write("a.jsonl", "{\"workload\": \"a\", \"prompt\": \"1\"}\n");
  write("c.txt", "not read");
  const auto data = LoadEvalData(folder);
  ASSERT_TRUE(data) << data.error().message;
  ASSERT_EQ(data->items.size(), 2U);
  EXPECT_EQ(data->items[0].workload, "a");
  const auto one = LoadEvalData(folder + "/b.jsonl");
  ASSERT_TRUE(one);
  EXPECT_NE(one->hash, data->hash);
  write("b.jsonl", "\n");
  EXPECT_THAT(LoadEvalData(folder + "/b.jsonl").error().message, HasSubstr("no items"));
  EXPECT_EQ(LoadEvalData(folder + "/none").error().code, ErrorCode::kNotFound);
}

TEST(Cell, NamesAreReadAsTheyArePrinted) {
  for (const Cell& cell : {Cell{"qa", 1024}, Cell{"math", 128}, Cell{"retrieval", 0},
                           Cell{"a:b", 6144}, Cell{"x", 1000}}) {
    const auto parsed = ParseCell(CellName(cell));
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(*parsed, cell);
  }
  EXPECT_EQ(CellName({"qa", 6144}), "qa:6K");
  const auto cells = ParseCells("qa:1K,math:128,qa:1024");
  ASSERT_TRUE(cells);
  EXPECT_THAT(*cells, ElementsAre(Cell{"qa", 1024}, Cell{"math", 128}));
  for (const char* wrong :
       {"", ":1K", "qa:", "qa:0", "qa:-1", "qa:1M", "qa:99999999999K", "a,,b"}) {
    EXPECT_FALSE(ParseCells(wrong)) << wrong;
  }
}

TEST(Cell, StandardCellsAreThoseOfTheWorkloadsThereAre) {
  const std::vector<EvalItem> items = {
      {.workload = "zebra",
       .prompt = "p",
       .context = "",
       .title = "",
       .reference = "",
       .answers = {}},
      {.workload = "qa", .prompt = "p", .context = "", .title = "", .reference = "", .answers = {}},
      {.workload = "math",
       .prompt = "p",
       .context = "",
       .title = "",
       .reference = "",
       .answers = {}}};
  EXPECT_THAT(StandardCells(items),
              ElementsAre(Cell{"math", 128}, Cell{"math", 1024}, Cell{"qa", 128}, Cell{"qa", 1024},
                          Cell{"qa", 6144}, Cell{"zebra", 0}));
}

}  // namespace
}  // namespace kvik::eval
