// SPDX-License-Identifier: Apache-2.0
#include "control/testing/regret_study.h"

#include <gtest/gtest.h>

#include <string>

namespace kvik::control {
namespace {

using testing::Policy;
using testing::Rule;
using testing::StudyOptions;
using testing::StudyResult;
using testing::World;

constexpr int kSeeds = 20;

struct Case {
  const char* library;
  World world;
  Form form;
  Overlap overlap;
  int decisions;
};

class Regret : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    library_ = testing::ReadLibrary(std::string(KVIK_PROFILES) + "/" + GetParam().library).value();
    const MachineSpeeds speeds = testing::TypicalSpeeds(library_, 0.25);
    table_.emplace(ArmTable::Build(&library_, speeds, speeds, {}).value());
  }
  [[nodiscard]] StudyResult Run(const Policy& policy) const {
    const Case& c = GetParam();
    StudyResult all;
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
      all.Add(testing::RunStudy(library_, *table_,
                                {.world = c.world,
                                 .form = c.form,
                                 .overlap = c.overlap,
                                 .decisions = c.decisions,
                                 .seed = seed},
                                policy));
    }
    return all;
  }
  codec::ProfileLibrary library_;
  std::optional<ArmTable> table_;
};

// Over 20 worlds: a request takes on average at most 5 % longer than with an oracle that knows the
// noise of each transfer, and so do all together; no poor arm ever; late at most 2 points more
// often than the oracle; and better than what is simpler.
TEST_P(Regret, IsSmallAndSimplerRulesHaveMore) {
  const StudyResult full = Run({});
  EXPECT_LE(full.TotalRegret(), 0.05);
  EXPECT_LE(full.MeanRegret(), 0.05);
  EXPECT_EQ(full.poor, 0);
  EXPECT_LE(full.LateShare(), full.OracleLateShare() + 0.02);

  Policy not_learning;
  not_learning.controller.learn_speeds = false;
  not_learning.controller.residual_alpha = 0;
  not_learning.controller.epsilon = 0;
  const StudyResult without = Run(not_learning);
  EXPECT_GT(without.MeanRegret(), 1.3 * full.MeanRegret());
  EXPECT_GT(Run({.rule = Rule::kFirstKept}).MeanRegret(), 4 * full.MeanRegret());
  EXPECT_GT(Run({.rule = Rule::kModelFree}).MeanRegret(), 10 * full.MeanRegret());

  // Times of whole paths instead of stages: worse, and still better than raw by far.
  Policy residuals;
  residuals.controller.learn_speeds = false;
  const StudyResult by_path = Run(residuals);
  EXPECT_EQ(by_path.poor, 0);
  EXPECT_GT(by_path.MeanRegret(), full.MeanRegret());
  EXPECT_LT(by_path.MeanRegret(), 0.15);
  EXPECT_GT(Run({.rule = Rule::kRaw}).MeanRegret(), 0.3);
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, Regret,
    ::testing::Values(
        Case{"smollm2-135m", World::kDrop, Form::kPoolRead, Overlap::kPipelined, 300},
        Case{"smollm2-135m", World::kSteps, Form::kPoolRead, Overlap::kPipelined, 600},
        Case{"smollm2-135m", World::kSteps, Form::kHandOver, Overlap::kPipelined, 600},
        Case{"smollm2-135m", World::kSteps, Form::kHandOver, Overlap::kSerial, 600},
        Case{"qwen2.5-coder-0.5b", World::kDrop, Form::kPoolRead, Overlap::kPipelined, 300},
        Case{"qwen2.5-coder-0.5b", World::kSteps, Form::kPoolRead, Overlap::kPipelined, 600},
        Case{"qwen2.5-coder-0.5b", World::kSteps, Form::kHandOver, Overlap::kPipelined, 600},
        Case{"qwen2.5-coder-0.5b", World::kSteps, Form::kHandOver, Overlap::kSerial, 600}));

TEST(RegretStudy, TheSameSeedGivesTheSameWorldAndChoices) {
  const codec::ProfileLibrary library =
      testing::ReadLibrary(std::string(KVIK_PROFILES) + "/smollm2-135m").value();
  const MachineSpeeds speeds = testing::TypicalSpeeds(library, 0.25);
  const ArmTable table = ArmTable::Build(&library, speeds, speeds, {}).value();
  const auto run = [&](uint64_t seed) {
    return testing::RunStudy(library, table, {.decisions = 100, .seed = seed}, {}).time_us;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

}  // namespace
}  // namespace kvik::control
