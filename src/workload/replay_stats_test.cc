// SPDX-License-Identifier: Apache-2.0
#include "workload/replay_stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvik::workload {
namespace {

Trace Uses(const std::vector<std::pair<int64_t, std::vector<uint64_t>>>& uses) {
  Trace trace;
  for (const auto& [second, blocks] : uses) {
    TraceRequest request;
    request.arrival_us = second * 1000000;
    request.blocks = blocks;
    request.turn = static_cast<int32_t>(trace.requests.size()) + 1;
    trace.requests.push_back(request);
  }
  return trace;
}

TEST(ReuseGaps, AreBetweenNeighbouringUsesAndOfTheEarliersTurn) {
  const auto gaps = ReuseGapsOf(Uses({{0, {1, 2}}, {10, {1}}, {40, {1, 2}}}));
  ASSERT_EQ(gaps.size(), 3U);
  EXPECT_EQ(gaps[0].name, "all");
  EXPECT_THAT(gaps[0].gaps_s, testing::ElementsAre(10, 30, 40));
  EXPECT_THAT(gaps[1].gaps_s, testing::ElementsAre(10, 40));
  EXPECT_EQ(gaps[2].name, "turn 2");
  EXPECT_THAT(gaps[2].gaps_s, testing::ElementsAre(30));
  EXPECT_DOUBLE_EQ(Quantile(gaps[0].gaps_s, 0.75), 35);
}

TEST(ReuseGaps, ThePlotFallsFromOneToNothingAndTheCurveMeetsPAtL) {
  const Trace trace = Uses({{0, {1}}, {100, {1}}, {300, {1}}});
  const Plot plot = ReuseGapPlot(trace, ReuseGapsOf(trace), {.lifespan_s = 50});
  for (const Series& series : plot.series) {
    for (size_t i = 1; i < series.points.size(); ++i) {
      EXPECT_LE(series.points[i].second, series.points[i - 1].second) << series.name;
    }
    EXPECT_NEAR(series.points.back().second, 0, 1e-6);
  }
  const Series& curve = plot.series.back();
  EXPECT_EQ(curve.name, "f, L = 50 s");
  for (const auto& [x, y] : curve.points) {
    EXPECT_EQ(y >= 0.5, x <= 50) << x;
  }
  EXPECT_TRUE(ReuseGapPlot(trace, {}, {}).series.empty());
}

TEST(HitStats, CountsPositionsAndClassesOfTheMeasuredRequests) {
  const std::vector<uint64_t> twenty(20, 1);
  const Trace trace = Uses({{0, twenty}, {1, twenty}, {2, twenty}, {3, twenty}, {4, {}}});
  HitStats stats(trace);
  const auto add = [&](size_t request, bool measured, std::vector<kv::ResidentRun> hits) {
    stats.Add(RequestOutcome{request, measured, hits});
  };
  add(0, false, {{0, 20}});
  add(0, true, {{0, 2}});
  add(1, true, {{0, 1}, {10, 5}});
  add(2, true, {{0, 15}});
  add(4, true, {});
  EXPECT_THAT(stats.RequestPctByClass(), testing::ElementsAre(25, 25, 25, 25));
  const auto positions = stats.HitPctByPosition();
  EXPECT_DOUBLE_EQ(positions[0], 100);
  EXPECT_NEAR(positions[1], 200.0 / 3, 1e-9);
  EXPECT_EQ(positions[19], 0);
  EXPECT_THAT(FormatHits({{"lru 5", stats}}), testing::HasSubstr("25.0%"));
}

}  // namespace
}  // namespace kvik::workload
