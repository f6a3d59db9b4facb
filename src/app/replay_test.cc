// SPDX-License-Identifier: Apache-2.0
#include "app/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/format.h"
#include "base/testing/temp_path.h"

namespace kvik::app {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Conversations of three turns that come back after 10, 20, ... seconds, in turn.
std::string WriteTrace() {
  std::string path = kvik::testing::TempPath("replay_trace.jsonl");
  std::ofstream file(path);
  std::vector<std::pair<int, std::string>> lines;
  for (int session = 0; session < 40; ++session) {
    for (int turn = 1; turn <= 3; ++turn) {
      const int at_ms = 3000 * session + 10000 * (1 + session % 4) * turn;
      std::string ids;
      for (int block = 0; block < 3 * turn; ++block) {
        ids += Format("%s%d", block > 0 ? "," : "", 100 * session + block);
      }
      lines.emplace_back(at_ms, Format("{\"timestamp\":%d,\"input_length\":%d,\"output_length\":5,"
                                       "\"block_size\":16,\"hash_ids\":[%s]}\n",
                                       at_ms, 48 * turn + 1, ids.c_str()));
    }
  }
  std::sort(lines.begin(), lines.end());
  for (const auto& [at_ms, line] : lines) {
    file << line;
  }
  return path;
}

class ReplayCommandTest : public ::testing::Test {
 protected:
  ReplayCommandTest() {
    command_.load.trace_path = WriteTrace();
    command_.name = "made";
    command_.cache_blocks = {40};
    command_.progress = Progress::Mode::kQuiet;
  }
  std::string Run() {
    ::testing::internal::CaptureStdout();
    const Result<int> status = RunReplay(command_);
    std::string text = ::testing::internal::GetCapturedStdout();
    EXPECT_TRUE(status.has_value()) << status.error().message;
    return text;
  }
  std::vector<nlohmann::json> RunJson() {
    command_.json = true;
    std::istringstream lines(Run());
    std::vector<nlohmann::json> all;
    for (std::string line; std::getline(lines, line);) {
      all.push_back(nlohmann::json::parse(line));
    }
    return all;
  }

  ReplayCommand command_;
};

TEST_F(ReplayCommandTest, VariantsOfAPolicyStandSideBySide) {
  command_.policies = {"lru", "asym", "asym@scan", "asym@p99", "asym@p99x0.01", "bound"};
  const auto cells = RunJson();
  ASSERT_EQ(cells.size(), 6U);
  const auto miss = [&](size_t i) { return cells[i]["miss_cost_pct"].get<double>(); };
  EXPECT_EQ(cells[2]["policy"], "asym@scan");
  EXPECT_EQ(miss(2), miss(1)) << "another way to the same victims";
  EXPECT_NE(miss(4), miss(3)) << "another lifespan";
  for (size_t i = 0; i < cells.size(); ++i) {
    EXPECT_EQ(cells[i]["offline"], i >= 3) << cells[i];
  }
  command_.json = false;
  EXPECT_THAT(Run(), HasSubstr("they know the trace to its end: asym@p99, asym@p99x0.01, bound\n"));
}

TEST_F(ReplayCommandTest, ASweepTurnsOneKnobAtATime) {
  command_.policies = {"lru", "asym"};
  command_.sweeps = {"lifespan=0.01,1", "reuse-prob=0.5,0.9"};
  command_.csv_path = kvik::testing::TempPath("replay_sweep.csv");
  const auto cells = RunJson();
  ASSERT_EQ(cells.size(), 8U);
  const auto miss = [&](size_t i) { return cells[i]["miss_cost_pct"].get<double>(); };
  EXPECT_EQ(cells[3]["knob"], "lifespan");
  EXPECT_EQ(cells[3]["value"], 1);
  EXPECT_EQ(cells[3]["offline"], true);
  EXPECT_EQ(cells[7]["knob"], "reuse-prob");
  EXPECT_EQ(cells[7]["offline"], false);
  EXPECT_EQ(miss(0), miss(2)) << "lru has no lifespan";
  EXPECT_NE(miss(1), miss(3));
  EXPECT_THAT(Contents(command_.csv_path),
              AllOf(HasSubstr("\"made, 40 blocks\",\"lru\",0.01,"), HasSubstr("\"asym\",0.9,")));
  command_.json = false;
  EXPECT_THAT(Run(), AllOf(HasSubstr("99th percentile of reuse gaps: 40 s"),
                           HasSubstr("lifespan, x P99 of all gaps (offline)"),
                           HasSubstr("reuse probability at the lifespan")));
}

TEST_F(ReplayCommandTest, TheControlPlanesCostAgainstSizeAndRequests) {
  command_.policies = {"lru", "asym@scan"};
  command_.cache_blocks = {2300, 4600};
  command_.control_plane = true;
  command_.load.requests = 3;
  command_.csv_path = kvik::testing::TempPath("replay_control.csv");
  const auto cells = RunJson();
  ASSERT_EQ(cells.size(), 4U);
  EXPECT_EQ(cells[3]["policy"], "asym@scan");
  EXPECT_EQ(cells[3]["requests"], 3);
  EXPECT_GT(cells[3]["victims"], 0);
  EXPECT_THAT(
      Contents(command_.csv_path),
      AllOf(HasSubstr("\"selection of victims\",\"lru\",2300,"), HasSubstr("\"asym@scan\",4600,")));
  command_.cumulative = true;
  command_.cache_blocks = {2300};
  EXPECT_EQ(RunJson().size(), 2U);
  EXPECT_THAT(Contents(command_.csv_path),
              AllOf(HasSubstr("2300 blocks\",\"lru\",1,"), HasSubstr("\"asym@scan\",3,"),
                    Not(HasSubstr("selection of victims"))));
  command_.policies = {"belady"};
  EXPECT_THAT(RunReplay(command_).error().message, HasSubstr("needs a trace"));
}

TEST_F(ReplayCommandTest, ACostOfThisMachineHasToBeMeasuredFirst) {
  command_.cost = "machine:no such processor";
  EXPECT_EQ(RunReplay(command_).error().code, ErrorCode::kNotFound);
  command_.cost = "machines";
  EXPECT_EQ(RunReplay(command_).error().code, ErrorCode::kInvalidInput);
}

}  // namespace
}  // namespace kvik::app
