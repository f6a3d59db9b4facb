// SPDX-License-Identifier: Apache-2.0
#include "workload/reference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "workload/cost_presets.h"
#include "workload/replay_table.h"

namespace kvik::workload {
namespace {

using testing::HasSubstr;

TEST(Reference, FindsCellsWhateverTheOrderOfColumns) {
  const auto reference =
      Reference::Parse("policy,trace,miss_cost_pct,cache_blocks\r\nlru,t,50.5,100\r\n\r\n", "f")
          .value();
  EXPECT_EQ(reference.MissCostPct("t", 100, "lru"), 50.5);
  EXPECT_EQ(reference.MissCostPct("t", 101, "lru"), std::nullopt);
}

TEST(Reference, ErrorsNameTheLine) {
  EXPECT_THAT(Reference::Parse("trace,policy\n", "f").error().message, HasSubstr("f:1: no column"));
  const std::string head = "trace,cache_blocks,policy,miss_cost_pct\n";
  EXPECT_THAT(Reference::Parse(head + "t,1,lru\n", "f").error().message,
              HasSubstr("f:2: 3 fields, but 4 names"));
  EXPECT_THAT(Reference::Parse(head + "t,many,lru,5\n", "f").error().message,
              HasSubstr("f:2: cache_blocks or miss_cost_pct is no number"));
}

TEST(ReplayTable, ComparesWithTheReference) {
  const auto reference =
      Reference::Parse("trace,cache_blocks,policy,miss_cost_pct\nt,100,lru,50.5\nt,100,lfu,40\n",
                       "f")
          .value();
  ReplayCell near;
  near.trace = "t";
  near.policy = "lru";
  near.cache_blocks = 100;
  near.miss_cost_pct = 51.0;
  ReplayCell far = near;
  far.policy = "lfu";
  ReplayCell unknown = near;
  unknown.policy = "fifo";
  const std::string table = FormatCells(std::vector{near, far, unknown}, &reference);
  EXPECT_THAT(table, HasSubstr("+0.5"));
  EXPECT_THAT(table, HasSubstr("+11.0"));
  EXPECT_THAT(table, HasSubstr("1 of 2 compared cells"));
}

TEST(ReplayTable, JsonOfABoundHasNoHits) {
  ReplayCell cell;
  cell.policy = "bound";
  cell.only_bound = true;
  EXPECT_THAT(CellJson(cell), HasSubstr("\"block_hit_pct\":null"));
}

TEST(CostPresets, AreNamesOrTwoNumbers) {
  EXPECT_DOUBLE_EQ(ParseCost("h20-8b")->a_us(), 111);
  EXPECT_DOUBLE_EQ(ParseCost("h20-8b")->c_us(), 5.8e-3);
  EXPECT_DOUBLE_EQ(ParseCost("2,0.5")->c_us(), 0.5);
  for (const char* bad : {"h20", "1", "1,", "1,2,3", "-1,2", "nan,1", "0,0", "1e300,1"}) {
    EXPECT_THAT(ParseCost(bad).error().message, HasSubstr("h100-8b")) << bad;
  }
}

}  // namespace
}  // namespace kvik::workload
