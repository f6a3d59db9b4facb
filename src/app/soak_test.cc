// SPDX-License-Identifier: Apache-2.0
#include "app/soak.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>

#include "app/soak_round.h"
#include "base/testing/temp_path.h"
#include "engine/testing/fake_executor.h"
#include "model/testing/tiny_model.h"

namespace kvik::app {
namespace {

TEST(Soak, ATinyModelHoldsUnderEveryPolicy) {
  const std::string path = kvik::testing::TempPath("soak.gguf");
  ASSERT_TRUE(model::testing::WriteTinyGguf(model::testing::TinyModelOptions{}, path).has_value());
  SoakOptions options;
  options.runtime.model = path;
  options.runtime.threads = 1;
  options.runtime.policy.name = "all";
  options.minutes = 0;
  options.rounds = static_cast<int32_t>(SoakPolicies().size());
  options.requests = 60;
  options.progress = Progress::Mode::kQuiet;
  ::testing::internal::CaptureStdout();
  const Result<int> first = SelftestSoak(options);
  const std::string said = ::testing::internal::GetCapturedStdout();
  ASSERT_TRUE(first.has_value()) << first.error().message;
  EXPECT_EQ(*first, 0) << said;
  EXPECT_THAT(said, ::testing::HasSubstr(", 0 differing tokens, 0 differing logprobs"));
  for (const std::string& policy : SoakPolicies()) {
    std::string row = "\n";
    row.append(policy).append(" ");
    EXPECT_THAT(said, ::testing::HasSubstr(row));
  }

  // Equal seeds, equal answers.
  options.runtime.policy.name = "asym";
  options.rounds = 1;
  const auto digest = [&](uint64_t seed) {
    options.seed = seed;
    ::testing::internal::CaptureStdout();
    EXPECT_TRUE(SelftestSoak(options).has_value());
    const std::string line = ::testing::internal::GetCapturedStdout();
    return line.substr(line.rfind("digest"));
  };
  EXPECT_EQ(digest(1), digest(1));
  EXPECT_NE(digest(1), digest(2));
  std::filesystem::remove(path);
}

TEST(Soak, WhatCannotRunIsNamed) {
  SoakOptions options;
  options.runtime.model = "/no/such/model.gguf";
  options.runtime.policy.name = "best";
  EXPECT_THAT(SelftestSoak(options).error().message, ::testing::HasSubstr("best"));
  options.runtime.policy.name = "all";
  EXPECT_THAT(SelftestSoak(options).error().message, ::testing::HasSubstr("/no/such/model.gguf"));
  options.minutes = 0;
  EXPECT_THAT(SelftestSoak(options).error().message, ::testing::HasSubstr("--minutes"));
}

// A model that is not the same one when it is asked alone, and one that fails.
class SoakRoundTest : public ::testing::Test {
 protected:
  static Result<SoakTally> Run(engine::FakeExecutor& executor) {
    engine::FakeExecutor alone(Blocks(33));
    SoakRoundOptions options;
    options.policy.name = "asym";
    options.num_blocks = 48;
    options.longest_tokens = 512;
    options.max_batch_rows = 512;
    options.requests = 150;
    Sha256 hash;
    return RunSoakRound(options, executor, alone, Rng(7), hash);
  }
  static engine::FakeExecutorOptions Blocks(int32_t num_blocks) {
    engine::FakeExecutorOptions options;
    options.num_blocks = num_blocks;
    return options;
  }
};

TEST_F(SoakRoundTest, AnswersThatDifferFromThoseAloneAreCounted) {
  engine::FakeExecutor good(Blocks(48));
  const SoakTally right = Run(good).value();
  EXPECT_EQ(right.differing_tokens + right.differing_logprobs, 0);
  EXPECT_GT(right.compared, 10);
  EXPECT_GT(right.gaps, 0);

  // Once in a while a step writes one token's KV wrong.
  engine::FakeExecutor bad(Blocks(48));
  int steps = 0;
  bad.before_execute = [&](const model::StepBatch& batch) -> Result<void> {
    if (++steps % 50 == 0) {
      const_cast<model::StepBatch&>(batch).tokens.front() ^= 1;
    }
    return {};
  };
  EXPECT_GT(Run(bad).value().differing_tokens, 0);
}

TEST_F(SoakRoundTest, AFailedStepIsAnError) {
  engine::FakeExecutor executor(Blocks(48));
  int steps = 0;
  executor.before_execute = [&](const model::StepBatch&) -> Result<void> {
    return ++steps == 100 ? Result<void>(Err(ErrorCode::kInternal, "out of luck")) : Result<void>();
  };
  EXPECT_THAT(Run(executor).error().message, ::testing::HasSubstr("out of luck"));
}

}  // namespace
}  // namespace kvik::app
