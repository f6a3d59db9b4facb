// SPDX-License-Identifier: Apache-2.0
// workload/plot.h: numbers to be drawn or written to a table by somebody else.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace kvik::workload {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // ascending by x
};

struct Plot {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool log_x = false;  // all x > 0 then
  std::vector<Series> series;
  bool log_y = false;  // all y > 0 then
  bool marks = false;  // a dot at every point: they are measurements of their own, not a curve
};

}  // namespace kvik::workload
