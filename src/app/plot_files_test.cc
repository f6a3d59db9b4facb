// SPDX-License-Identifier: Apache-2.0
#include "app/plot_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace kvik::app {
namespace {

using testing::HasSubstr;
using workload::Plot;

const std::vector<Plot> kPlots = {
    {"a < \"b\"", "x", "y", false, {{"one, two", {{0, 0}, {10, 5}}}}},
    {"logs", "s", "share", true, {{"c", {{1, 1}, {10, 0.5}, {100, 0}}}, {"empty", {}}}}};

TEST(PlotFiles, CsvHasALineAPoint) {
  EXPECT_EQ(PlotsCsv(kPlots),
            "plot,series,x,y\n"
            "\"a < \"\"b\"\"\",\"one, two\",0,0\n"
            "\"a < \"\"b\"\"\",\"one, two\",10,5\n"
            "\"logs\",\"c\",1,1\n"
            "\"logs\",\"c\",10,0.5\n"
            "\"logs\",\"c\",100,0\n");
}

TEST(PlotFiles, SvgScalesBothAxesAndEscapesNames) {
  const std::string svg = PlotsSvg(kPlots);
  EXPECT_THAT(svg, HasSubstr("a &lt; \"b\""));
  EXPECT_THAT(svg, HasSubstr("points=\"64.0,312.0 560.0,36.0 \""));
  // The second chart lies below, and 10 is half way from 1 to 100.
  EXPECT_THAT(svg, HasSubstr("points=\"64.0,396.0 312.0,534.0 560.0,672.0 \""));
  EXPECT_THAT(svg, HasSubstr("height=\"720\""));
}

TEST(PlotFiles, ALogarithmicHeightBeginsAtTheLeastValue) {
  const std::vector<Plot> plots = {
      {"costs", "x", "us", false, {{"c", {{0, 1}, {5, 10}, {10, 100}}}}, true}};
  const std::string svg = PlotsSvg(plots);
  EXPECT_THAT(svg, HasSubstr("points=\"64.0,312.0 312.0,174.0 560.0,36.0 \""));
  EXPECT_THAT(svg, HasSubstr(">100</text>"));
}

TEST(PlotFiles, MeasurementsHaveADotEach) {
  std::vector<Plot> plots = {{"costs", "x", "us", false, {{"c", {{0, 1}, {10, 100}}}}, true}};
  EXPECT_EQ(PlotsSvg(plots).find("<circle"), std::string::npos);
  plots[0].marks = true;
  EXPECT_THAT(PlotsSvg(plots), HasSubstr("<circle cx=\"560.0\" cy=\"36.0\""));
}

TEST(PlotFiles, AnUnwritablePathIsNamed) {
  EXPECT_THAT(WriteTextFile("/nonexistent/folder/x", "").error().message,
              HasSubstr("/nonexistent/folder/x"));
}

}  // namespace
}  // namespace kvik::app
