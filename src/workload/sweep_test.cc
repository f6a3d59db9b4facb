// SPDX-License-Identifier: Apache-2.0
#include "workload/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvik::workload {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

SweepCell Cell(double value, const char* policy, int32_t blocks, double miss) {
  ReplayCell cell;
  cell.trace = "t";
  cell.policy = policy;
  cell.cache_blocks = blocks;
  cell.miss_cost_pct = miss;
  return {value, cell};
}

TEST(Sweep, ReadsAKnobAndItsValues) {
  const auto sweep = ParseSweep("slope-ratio=10,40,160");
  ASSERT_TRUE(sweep.has_value());
  EXPECT_EQ(sweep->knob, Sweep::Knob::kSlopeRatio);
  EXPECT_THAT(sweep->values, ElementsAre(10, 40, 160));
  EXPECT_THAT(ParseSweep("reuse-prob=0.5")->values, ElementsAre(0.5));
}

TEST(Sweep, RefusesWhatIsNoKnobOrOutOfRange) {
  for (const char* text : {"", "lifespan", "age=1", "=1", "lifespan1=2"}) {
    EXPECT_THAT(ParseSweep(text).error().message, HasSubstr("give lifespan=")) << text;
  }
  for (const char* text :
       {"lifespan=", "lifespan=0", "lifespan=1,,2", "lifespan=1,", "reuse-prob=1", "slope-ratio=1",
        "slope-ratio=nan", "slope-ratio=1e9", "lifespan=2x"}) {
    EXPECT_THAT(ParseSweep(text).error().message, HasSubstr("is no number from")) << text;
  }
}

TEST(Sweep, TurnsOneKnobAndLeavesTheOthers) {
  const PolicyVariant asym = *ParsePolicyVariant("asym");
  const kv::PolicyOptions defaults;
  for (const Sweep::Knob knob :
       {Sweep::Knob::kLifespan, Sweep::Knob::kReuseProb, Sweep::Knob::kSlopeRatio}) {
    PolicyVariant variant = asym;
    kv::PolicyOptions shared = defaults;
    Turn(knob, 0.25, variant, shared);
    EXPECT_EQ(variant.lifespan_in_p99, knob == Sweep::Knob::kLifespan ? 0.25 : 0);
    EXPECT_EQ(shared.reuse_prob, knob == Sweep::Knob::kReuseProb ? 0.25 : defaults.reuse_prob);
    EXPECT_EQ(shared.slope_ratio, knob == Sweep::Knob::kSlopeRatio ? 0.25 : defaults.slope_ratio);
    EXPECT_EQ(IsOffline(variant), knob == Sweep::Knob::kLifespan);
  }
}

TEST(Sweep, ATableHasALineAValueAndAColumnAPolicy) {
  const Sweep sweep{Sweep::Knob::kSlopeRatio, {10, 40}};
  const std::vector<SweepCell> cells = {Cell(10, "lru", 5, 90), Cell(10, "asym", 5, 80),
                                        Cell(40, "lru", 5, 90), Cell(40, "asym", 5, 70.25),
                                        Cell(10, "lru", 9, 60), Cell(40, "lru", 9, 60)};
  EXPECT_EQ(FormatSweep(sweep, cells),
            "t, 5 blocks: miss cost, %\n"
            "slope ratio                                      lru        asym\n"
            "10                                              90.0        80.0\n"
            "40                                              90.0        70.2\n"
            "t, 9 blocks: miss cost, %\n"
            "slope ratio                                      lru\n"
            "10                                              60.0\n"
            "40                                              60.0\n");
  const std::vector<Plot> plots = SweepPlots(sweep, cells);
  ASSERT_EQ(plots.size(), 2U);
  EXPECT_EQ(plots[0].title, "t, 5 blocks");
  ASSERT_EQ(plots[0].series.size(), 2U);
  EXPECT_EQ(plots[0].series[1].name, "asym");
  EXPECT_THAT(plots[0].series[1].points, ElementsAre(Pair(10, 80), Pair(40, 70.25)));
  EXPECT_THAT(SweepCellJson(sweep, cells[3]),
              HasSubstr("{\"knob\":\"slope-ratio\",\"value\":40,\"trace\":\"t\""));
}

}  // namespace
}  // namespace kvik::workload
