// SPDX-License-Identifier: Apache-2.0
#include "workload/trace_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvik::workload {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(TraceReader, ReadsMooncakeLinesAndDropsThePartialBlock) {
  const auto trace =
      ParseTrace(
          "{\"timestamp\": 20, \"input_length\": 1100, \"output_length\": 5, \"hash_ids\": "
          "[7,8,9]}\n"
          "\n"
          "{\"timestamp\": 10, \"input_length\": 1024, \"output_length\": 6, \"hash_ids\": "
          "[7,8]}\r\n"
          "{\"timestamp\": 10, \"input_length\": 0, \"output_length\": 0, \"hash_ids\": []}",
          "t")
          .value();
  EXPECT_EQ(trace.name, "t");
  EXPECT_EQ(trace.block_size_tokens, 512);
  ASSERT_EQ(trace.requests.size(), 3U);
  EXPECT_EQ(trace.requests[0].arrival_us, 10000);  // sorted by time, those of one time in order
  EXPECT_THAT(trace.requests[0].blocks, ElementsAre(7, 8));
  EXPECT_EQ(trace.requests[1].input_tokens, 0);
  EXPECT_EQ(trace.requests[2].arrival_us, 20000);
  EXPECT_EQ(trace.requests[2].output_tokens, 5);
  EXPECT_THAT(trace.requests[2].blocks, ElementsAre(7, 8));
  EXPECT_EQ(trace.requests[2].session, -1);
}

TEST(TraceReader, TakesBlockSizeSessionAndTurnAsTheyAre) {
  const auto trace = ParseTrace(
                         "{\"timestamp\":1,\"session\":4,\"turn\":2,\"input_length\":33,"
                         "\"output_length\":1,\"block_size\":16,\"hash_ids\":[5,6]}",
                         "t")
                         .value();
  EXPECT_EQ(trace.block_size_tokens, 16);
  EXPECT_EQ(trace.requests[0].session, 4);
  EXPECT_EQ(trace.requests[0].turn, 2);
}

TEST(TraceReader, BlocksOfTextNameTheirWholePrefix) {
  const std::string head(64, 'a');  // one block
  const auto line = [](const std::string& session, const std::string& input) {
    return "{\"timestamp\": 5, \"session_id\": \"" + session + "\", \"input\": \"" + input +
           "\", \"output\": \"abcde\"}\n";
  };
  const auto trace = ParseTrace(line("x", head + std::string(64, 'b') + "tail") +
                                    line("y", head + std::string(64, 'b')) +
                                    line("x", std::string(64, 'c') + std::string(64, 'b')),
                                "t")
                         .value();
  ASSERT_EQ(trace.requests.size(), 3U);
  EXPECT_EQ(trace.block_size_tokens, 16);
  EXPECT_EQ(trace.requests[0].input_tokens, 33);
  EXPECT_EQ(trace.requests[0].output_tokens, 2);
  EXPECT_EQ(trace.requests[0].blocks, trace.requests[1].blocks);
  EXPECT_NE(trace.requests[0].blocks[1], trace.requests[2].blocks[1]);
  EXPECT_EQ(trace.requests[0].session, trace.requests[2].session);
  EXPECT_NE(trace.requests[0].session, trace.requests[1].session);
}

TEST(TraceReader, ErrorsNameTheLineTheFieldAndWhatToDo) {
  const std::string good =
      "{\"timestamp\": 1, \"input_length\": 512, \"output_length\": 5, \"hash_ids\": [7]}\n";
  struct Case {
    std::string line;
    std::vector<std::string> words;
  };
  const auto with = [](const std::string& fields) { return "{\"timestamp\": 1, " + fields + "}"; };
  const std::vector<Case> cases = {
      {"hello", {"is not valid JSON"}},
      {"[1]", {"is not a JSON object"}},
      {"{\"input_length\": 1, \"output_length\": 1, \"hash_ids\": []}",
       {"\"timestamp\"", "missing"}},
      {with("\"input_length\": -3, \"output_length\": 1, \"hash_ids\": []"),
       {"\"input_length\" is -3", "from 0"}},
      {with("\"input_length\": 1e30, \"output_length\": 1, \"hash_ids\": []"),
       {"\"input_length\"", "whole number"}},
      {with("\"input_length\": \"many\", \"output_length\": 1, \"hash_ids\": []"),
       {"\"input_length\" is \"many\""}},
      {with("\"input_length\": 60000000, \"output_length\": 1, \"hash_ids\": [1]"),
       {"\"hash_ids\" has 1 ids", "117187 full blocks"}},
      {with("\"input_length\": 512, \"output_length\": 1, \"hash_ids\": [1,2,3]"),
       {"\"hash_ids\" has 3 ids"}},
      {with("\"input_length\": 512, \"output_length\": 1, \"hash_ids\": [-1]"),
       {"\"hash_ids\" holds -1 at place 0"}},
      {with("\"input_length\": 512, \"output_length\": 1, \"hash_ids\": [1.5]"),
       {"\"hash_ids\" holds 1.5"}},
      {with("\"input_length\": 512, \"output_length\": 1, \"hash_ids\": 5"),
       {"\"hash_ids\"", "not an array"}},
      {with("\"input_length\": 1, \"output_length\": 1, \"block_size\": 0, \"hash_ids\": []"),
       {"\"block_size\" is 0"}},
      {with("\"input_length\": 1, \"output_length\": 1, \"block_size\": 16, \"hash_ids\": []"),
       {"\"block_size\" is 16, but 512"}},
      {with("\"input\": 7, \"output\": \"\", \"session_id\": \"\""), {"\"block_size\" is 16"}},
      {std::string(200, '['), {"nests deeper"}},
  };
  for (const Case& c : cases) {
    const auto trace = ParseTrace(good + c.line + "\n", "file.jsonl");
    ASSERT_FALSE(trace.has_value()) << c.line;
    EXPECT_EQ(trace.error().code, ErrorCode::kInvalidInput);
    EXPECT_THAT(trace.error().message, HasSubstr("file.jsonl:2: "));
    for (const std::string& word : c.words) {
      EXPECT_THAT(trace.error().message, HasSubstr(word));
    }
  }
  EXPECT_THAT(ParseTrace(" \n\n", "empty").error().message, HasSubstr("no requests"));
}

}  // namespace
}  // namespace kvik::workload
