// SPDX-License-Identifier: Apache-2.0
#include "app/machine_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/rng.h"
#include "base/testing/temp_path.h"
#include "engine/testing/fake_executor.h"

namespace kvik::app {
namespace {

// Steps that take what a known model says.
class MachineCostTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.folder = kvik::testing::TempPath("costs");
    std::filesystem::remove_all(options_.folder);
    options_.numerics = "v1/test";
    options_.num_blocks = 256;
    options_.progress = Progress::Mode::kQuiet;
  }
  kv::CostModel Get() {
    engine::FakeExecutorOptions fake;
    fake.num_blocks = options_.num_blocks;
    engine::FakeExecutor executor(fake);
    executor.before_execute = [&](const model::StepBatch& batch) -> Result<void> {
      ++steps_;
      double us = noise_ ? static_cast<double>(rng_.Below(1'000'000)) : 200.0;
      for (const model::Segment& segment : batch.segments) {
        us += 0.01 * (segment.num_tokens == 1 ? 1000 : segment.num_tokens) *
              (1000 + segment.first_pos + segment.num_tokens / 2.0);
      }
      clock_.Advance(static_cast<int64_t>(us));
      return {};
    };
    return MachineCostModel(executor, clock_, options_);
  }
  std::string OnlyFile() {
    return std::filesystem::directory_iterator(options_.folder)->path().string();
  }

  ManualClock clock_;
  MachineCostOptions options_;
  Rng rng_{3};
  bool noise_ = false;
  int steps_ = 0;
};

TEST_F(MachineCostTest, MeasuresOnceAndKeepsTheResult) {
  const kv::CostModel first = Get();
  EXPECT_GT(steps_, 50);
  EXPECT_GT(first.square_us, 0);
  steps_ = 0;
  const kv::CostModel second = Get();
  EXPECT_EQ(steps_, 0);
  EXPECT_EQ(second.token_us, first.token_us);
  EXPECT_EQ(second.square_us, first.square_us);
  options_.source = CostSource::kMeasure;
  Get();
  EXPECT_GT(steps_, 50);
}

TEST_F(MachineCostTest, AnotherModelOrMachineIsMeasuredAgain) {
  Get();
  for (const auto& change : {+[](MachineCostOptions& o) { o.numerics = "v1/other"; },
                             +[](MachineCostOptions& o) { o.threads = 7; }}) {
    steps_ = 0;
    change(options_);
    Get();
    EXPECT_GT(steps_, 0);
  }
}

TEST_F(MachineCostTest, AFileThatMakesNoSenseIsMeasuredAgain) {
  const kv::CostModel want = Get();
  const std::string path = OnlyFile();
  std::string good;
  {
    std::ifstream file(path);
    good.assign(std::istreambuf_iterator<char>(file), {});
  }
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  const std::string bad[] = {"",
                             "{",
                             "[]",
                             R"({"format":1})",
                             std::string(1000, '[') + std::string(1000, ']'),
                             replaced("v1/test", "v1/rest"),
                             replaced(R"("token_us": )", R"("token_us": -)"),
                             replaced(R"("square_us": )", R"("square_us": "x", "y": )")};
  for (const std::string& text : bad) {
    std::ofstream(path, std::ios::trunc) << text;
    steps_ = 0;
    EXPECT_EQ(Get().token_us, want.token_us);
    EXPECT_GT(steps_, 0) << text.substr(0, 60);
  }
}

TEST_F(MachineCostTest, WhatExplainsNothingGivesTheDefaultAndIsNotKept) {
  noise_ = true;
  EXPECT_EQ(Get().token_us, kv::CostModel::Default().token_us);
  EXPECT_FALSE(std::filesystem::exists(options_.folder));
}

TEST_F(MachineCostTest, DefaultMeasuresNothing) {
  options_.source = CostSource::kDefault;
  EXPECT_EQ(Get().token_us, kv::CostModel::Default().token_us);
  EXPECT_EQ(steps_, 0);
}

TEST_F(MachineCostTest, AFolderThatCannotBeMadeIsNoError) {
  std::ofstream(options_.folder) << "a file";
  EXPECT_GT(Get().square_us, 0);
  std::filesystem::remove(options_.folder);
}

TEST_F(MachineCostTest, TheNewestKeptOneIsFoundByAPartOfItsKey) {
  const auto none = NewestKeptCost(options_.folder, "");
  ASSERT_FALSE(none.has_value());
  EXPECT_THAT(none.error().message, ::testing::HasSubstr("no cost was measured"));
  const kv::CostModel first = Get();
  std::filesystem::last_write_time(
      OnlyFile(), std::filesystem::last_write_time(OnlyFile()) - std::chrono::hours(1));
  options_.numerics = "v2/other";
  const kv::CostModel second = Get();
  const auto newest = NewestKeptCost(options_.folder, "");
  ASSERT_TRUE(newest.has_value()) << newest.error().message;
  EXPECT_EQ(newest->model.token_us, second.token_us);
  EXPECT_THAT(newest->key, ::testing::HasSubstr("v2/other"));
  const auto older = NewestKeptCost(options_.folder, "v1/");
  ASSERT_TRUE(older.has_value()) << older.error().message;
  EXPECT_EQ(older->model.token_us, first.token_us);
  const auto other = NewestKeptCost(options_.folder, "v3/");
  ASSERT_FALSE(other.has_value());
  EXPECT_THAT(other.error().message, ::testing::HasSubstr("v2/other"));
}

TEST_F(MachineCostTest, DamagedFilesAreNoKeptCosts) {
  std::filesystem::create_directories(options_.folder);
  std::ofstream(options_.folder + "/a.json") << "{\"format\":1,\"key\":\"k\",\"model\":{}}";
  std::ofstream(options_.folder + "/b.json") << "no json";
  EXPECT_FALSE(NewestKeptCost(options_.folder, "").has_value());
}

}  // namespace
}  // namespace kvik::app
