// SPDX-License-Identifier: Apache-2.0
// app/plot_files.h: plots as files: CSV for other tools, SVG for eyes.
#pragma once

#include <span>
#include <string>

#include "base/result.h"
#include "workload/plot.h"

namespace kvik::app {

// Columns plot, series, x, y. Quotes and commas in names are escaped.
std::string PlotsCsv(std::span<const workload::Plot> plots);
// Line charts below each other in one picture.
std::string PlotsSvg(std::span<const workload::Plot> plots);

// Both forms, each where its path is not empty.
Result<void> WritePlots(const std::string& csv_path, const std::string& svg_path,
                        std::span<const workload::Plot> plots);

// Replaces the file. kUnavailable names the path.
Result<void> WriteTextFile(const std::string& path, const std::string& text);

}  // namespace kvik::app
