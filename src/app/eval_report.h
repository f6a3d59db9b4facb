// SPDX-License-Identifier: Apache-2.0
// app/eval_report.h: results of kvik eval for people and for programs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "eval/cell.h"
#include "eval/statistics.h"
#include "workload/plot.h"

namespace kvik::app {

// One pipeline on one cell.
struct EvalRow {
  std::string name;      // as asked for: a preset, a profile or the pipeline
  std::string pipeline;  // canonical
  int32_t frame_tokens = 0;
  Result<eval::CellQuality> quality = eval::CellQuality();
};

struct EvalTable {
  eval::Cell cell;
  std::string measure;        // of the cell's task; empty: tasks were not asked for
  std::string text;           // what perplexity is about: "reference" or "raw answer"
  std::vector<EvalRow> rows;  // in the order asked for
};

struct EvalReport {
  std::string model;     // path
  std::string numerics;  // Model::numerics_tag()
  std::string data_hash;
  uint64_t seed = 0;
  int32_t continuation_tokens = 0;
  bool every_block = false;
  std::vector<EvalTable> tables;
};

std::string EvalJson(const EvalReport& report);
// Text with the columns asked for (EvalColumns), a block a cell.
std::string EvalText(const EvalReport& report, const std::vector<std::string>& columns);

// Bits against divergence, a plot a cell; names that differ by what follows the last dash are one
// series, and so are pipelines without names. What has no divergence to speak of is not on a
// logarithmic axis.
std::vector<workload::Plot> EvalPlots(const EvalReport& report);

}  // namespace kvik::app
