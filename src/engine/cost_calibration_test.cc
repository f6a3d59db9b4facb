// SPDX-License-Identifier: Apache-2.0
#include "engine/cost_calibration.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "engine/testing/fake_executor.h"

namespace kvik::engine {
namespace {

constexpr kv::CostModel kTrue{.step_us = 300,
                              .token_us = 150,
                              .cached_token_us = 0.5,
                              .segment_us = 20,
                              .square_us = 0.01,
                              .decode_us = 700,
                              .decode_kv_token_us = 0.3};

// Advances the clock by what a step costs.
class CostCalibrationTest : public testing::Test {
 protected:
  void SetUp() override {
    options_.num_blocks = 256;
    fake_.num_blocks = 256;
    fake_.limits.max_context_tokens = 8192;
    fake_.limits.max_batch_rows = 2048;
  }
  Result<kv::CostFit> Run() {
    FakeExecutor executor(fake_);
    executor.before_execute = [&](const model::StepBatch& batch) -> Result<void> {
      ++steps_;
      kv::StepFeatures features;
      for (const model::Segment& segment : batch.segments) {
        if (segment.num_tokens == 1) {
          features.AddDecode(segment.first_pos + 1);
        } else {
          features.AddSegment(segment.first_pos, segment.num_tokens);
        }
      }
      clock_.Advance(static_cast<int64_t>(true_.StepUs(features)));
      if (steps_ <= disturbed_steps_) {  // something else ran, for as long as it liked
        clock_.Advance(static_cast<int64_t>(rng_.Below(100'000)));
      }
      if (fail_) {
        return Err(ErrorCode::kInternal, "out of smoke");
      }
      return {};
    };
    return CalibrateCost(executor, clock_, options_);
  }

  ManualClock clock_;
  FakeExecutorOptions fake_;
  CalibrationOptions options_;
  kv::CostModel true_ = kTrue;
  bool fail_ = false;
  int disturbed_steps_ = 0;
  int steps_ = 0;
  Rng rng_{1};
};

TEST_F(CostCalibrationTest, FindsTheCostsOfTheExecutor) {
  uint64_t last = 0;
  options_.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_GT(done, last);
    EXPECT_LE(done, total);
    last = done;
  };
  const auto fit = Run();
  ASSERT_TRUE(fit.has_value()) << fit.error().message;
  EXPECT_GE(steps_, 2 * 48);
  EXPECT_NEAR(fit->model.token_us, kTrue.token_us, 0.5);
  EXPECT_NEAR(fit->model.square_us, kTrue.square_us, 1e-4);
  EXPECT_NEAR(fit->model.decode_us, kTrue.decode_us, 10);
  EXPECT_NEAR(fit->model.decode_kv_token_us, kTrue.decode_kv_token_us, 0.01);
  EXPECT_EQ(last, static_cast<uint64_t>(steps_ / 2));
}

TEST_F(CostCalibrationTest, StopsWhenTheBudgetIsSpent) {
  options_.budget_us = 2'000'000;
  const int64_t start_us = clock_.NowMicros();
  (void)Run();
  EXPECT_LT(clock_.NowMicros() - start_us, 2'200'000);
  EXPECT_GT(steps_, 20);
}

TEST_F(CostCalibrationTest, FitsShortContextsAndSmallPools) {
  fake_.limits.max_context_tokens = 640;
  fake_.num_blocks = options_.num_blocks = 40;
  const auto fit = Run();
  ASSERT_TRUE(fit.has_value()) << fit.error().message;
  EXPECT_NEAR(fit->model.token_us, kTrue.token_us, 1);
}

TEST_F(CostCalibrationTest, ADisturbedFirstRoundIsRepeated) {
  disturbed_steps_ = 100;
  const auto fit = Run();
  ASSERT_TRUE(fit.has_value()) << fit.error().message;
  EXPECT_GT(steps_, 150);
  EXPECT_NEAR(fit->model.token_us, kTrue.token_us, 1);
}

TEST_F(CostCalibrationTest, PassesOnTheExecutorsErrorAndTheFits) {
  true_ = kv::CostModel{.step_us = 1000};
  EXPECT_FALSE(Run().has_value());
  fail_ = true;
  const auto failed = Run();
  ASSERT_FALSE(failed.has_value());
  EXPECT_NE(failed.error().message.find("smoke"), std::string::npos);
}

}  // namespace
}  // namespace kvik::engine
