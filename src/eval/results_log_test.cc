// SPDX-License-Identifier: Apache-2.0
#include "eval/results_log.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "base/testing/temp_path.h"

namespace kvik::eval {
namespace {

PromptQuality Made(double kl) {
  PromptQuality p;
  p.positions = 64;
  p.agreeing = 60;
  p.kl_nats = kl;
  p.bytes = 1'234'567;
  p.key_error = 1e-17;
  p.attention.score_variance = 0.1;
  p.attention.output_norm = 1.0 / 3;
  p.scored = 1;
  p.score_raw = 1;
  return p;
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ResultsLog, ALineComesBackAsItWas) {
  const PromptQuality made = Made(0.1234567890123456789);
  const std::string line = PrintResult(0xABCDEF0123456789ULL, made);
  const auto parsed = ParseResult(line);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->first, 0xABCDEF0123456789ULL);
  EXPECT_EQ(parsed->second.kl_nats, made.kl_nats);
  EXPECT_EQ(PrintResult(parsed->first, parsed->second), line);
  for (size_t at = 0; at < line.size(); ++at) {
    std::string bad = line;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    EXPECT_FALSE(ParseResult(bad)) << bad;
    EXPECT_FALSE(ParseResult(line.substr(0, at)));
  }
  EXPECT_FALSE(ParseResult("{}"));
  EXPECT_FALSE(ParseResult("[]"));
}

TEST(ResultsLog, ARunGoesOnWhereALastOneEnded) {
  const std::string path = kvik::testing::TempPath("log/results.jsonl");
  {
    const auto log = ResultsLog::Open(path).value();
    EXPECT_EQ(log->Find(1), nullptr);
    ASSERT_TRUE(log->Add(1, Made(0.5)));
    ASSERT_TRUE(log->Add(2, Made(0.25)));
  }
  // As if it had been killed in the middle of a line.
  const std::string text = ReadAll(path);
  std::ofstream(path, std::ios::binary) << text.substr(0, text.size() - 20);
  {
    const auto log = ResultsLog::Open(path).value();
    EXPECT_EQ(log->damaged_lines(), 1U);
    ASSERT_NE(log->Find(1), nullptr);
    EXPECT_EQ(log->Find(1)->kl_nats, 0.5);
    EXPECT_EQ(log->Find(2), nullptr);
    ASSERT_TRUE(log->Add(2, Made(0.75)));
  }
  const auto log = ResultsLog::Open(path).value();
  EXPECT_EQ(log->size(), 2U);
  EXPECT_EQ(log->Find(2)->kl_nats, 0.75);
}

TEST(ResultsLog, WithoutAPathItLivesInMemory) {
  const auto log = ResultsLog::Open("").value();
  ASSERT_TRUE(log->Add(1, Made(0.5)));
  EXPECT_NE(log->Find(1), nullptr);
  EXPECT_FALSE(ResultsLog::Open("/proc/none/results"));
}

}  // namespace
}  // namespace kvik::eval
