// SPDX-License-Identifier: Apache-2.0
#include "app/eval_report.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/format.h"
#include "eval/task_score.h"

namespace kvik::app {
namespace {

using Json = nlohmann::ordered_json;
using eval::CellQuality;
using eval::Estimate;

struct NamedEstimate {
  const char* name;
  Estimate CellQuality::*estimate;
};
constexpr NamedEstimate kEstimates[] = {
    {"bits_per_value", &CellQuality::bits_per_value},
    {"cr", &CellQuality::cr},
    {"kl", &CellQuality::kl},
    {"top1", &CellQuality::top1},
    {"q", &CellQuality::q},
    {"ppl", &CellQuality::ppl},
    {"ppl_raw", &CellQuality::ppl_raw},
    {"mse", &CellQuality::mse},
    {"key_mse", &CellQuality::key_mse},
    {"value_mse", &CellQuality::value_mse},
    {"logit_error", &CellQuality::logit_error},
    {"output_error", &CellQuality::output_error},
};

// A task the raw model cannot do says nothing: then agreement is what counts.
bool TaskCounts(const CellQuality& quality) {
  return quality.scored_prompts > 0 && quality.score_raw.value >= eval::kLeastRawScore;
}

Json EstimateJson(const Estimate& estimate) {
  return {{"value", estimate.value}, {"low", estimate.low}, {"high", estimate.high}};
}

Json RowJson(const EvalTable& table, const EvalRow& row) {
  Json json;
  json["cell"] = eval::CellName(table.cell);
  json["workload"] = table.cell.workload;
  json["target_tokens"] = table.cell.target_tokens;
  json["name"] = row.name;
  json["pipeline"] = row.pipeline;
  json["frame_tokens"] = row.frame_tokens;
  if (!row.quality) {
    json["error"] = row.quality.error().message;
    return json;
  }
  const CellQuality& quality = *row.quality;
  json["prompts"] = quality.prompts;
  json["positions"] = quality.positions;
  json["sure_positions"] = quality.sure_positions;
  Json intervals;
  for (const NamedEstimate& named : kEstimates) {
    const Estimate& estimate = quality.*named.estimate;
    json[named.name] = estimate.value;
    intervals[named.name] = {estimate.low, estimate.high};
  }
  json["top1_low"] = quality.top1.low;
  json["q_low"] = quality.q.low;
  json["ppl_text"] = table.text;
  json["intervals"] = std::move(intervals);
  if (quality.scored_prompts > 0) {
    json["task"] = {{"measure", table.measure},
                    {"prompts", quality.scored_prompts},
                    {"score", EstimateJson(quality.score)},
                    {"score_raw", EstimateJson(quality.score_raw)},
                    {"counts", TaskCounts(quality)}};
  }
  return json;
}

std::string Percent(double share) { return Format("%.2f", 100 * share); }

std::string Interval(const Estimate& estimate, int decimals, double unit) {
  return Format("%.*f [%.*f %.*f]", decimals, unit * estimate.value, decimals, unit * estimate.low,
                decimals, unit * estimate.high);
}

using Cells = std::vector<std::string>;

Cells Header(const std::vector<std::string>& columns) {
  Cells cells = {"bits", "CR"};
  for (const std::string& column : columns) {
    if (column == "kl") {
      cells.emplace_back("KL, 1/1000 nat");
    } else if (column == "top1") {
      cells.emplace_back("top-1 %");
      cells.emplace_back("q %");
    } else if (column == "ppl") {
      cells.emplace_back("ppl");
    } else if (column == "error") {
      cells.insert(cells.end(), {"MSE", "logit err", "output err"});
    } else if (column == "task") {
      cells.emplace_back("task %");
    }
  }
  cells.emplace_back("");
  return cells;
}

std::string TaskCell(const CellQuality& quality) {
  if (quality.scored_prompts == 0) {
    return "-";
  }
  return TaskCounts(quality) ? Interval(quality.score, 1, 100)
                             : Format("(%.1f)", 100 * quality.score.value);
}

Cells RowCells(const EvalRow& row, const std::vector<std::string>& columns) {
  const CellQuality& quality = *row.quality;
  Cells cells = {Format("%.3f", quality.bits_per_value.value), Format("%.2f", quality.cr.value)};
  for (const std::string& column : columns) {
    if (column == "kl") {
      cells.push_back(Interval(quality.kl, 3, 1000));
    } else if (column == "top1") {
      cells.push_back(Interval(quality.top1, 2, 100));
      cells.push_back(Interval(quality.q, 2, 100));
    } else if (column == "ppl") {
      cells.push_back(Format("%.4f", quality.ppl.value));
    } else if (column == "error") {
      cells.push_back(Format("%.3g", quality.mse.value));
      cells.push_back(Format("%.4f", quality.logit_error.value));
      cells.push_back(Format("%.4f", quality.output_error.value));
    } else if (column == "task") {
      cells.push_back(TaskCell(quality));
    }
  }
  cells.push_back(row.name);
  return cells;
}

// Columns as wide as their widest cell, the last one as it is.
std::string Align(const std::vector<Cells>& lines) {
  std::vector<size_t> widths(lines.front().size(), 0);
  for (const Cells& cells : lines) {
    for (size_t i = 0; i < cells.size(); ++i) {
      widths[i] = std::max(widths[i], cells[i].size());
    }
  }
  std::string text;
  for (const Cells& cells : lines) {
    std::string line;
    for (size_t i = 0; i < cells.size(); ++i) {
      const bool last = i + 1 == cells.size();
      line.append(2 + (last ? 0 : widths[i] - cells[i].size()), ' ').append(cells[i]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string TableText(const EvalTable& table, const std::vector<std::string>& columns) {
  std::string text = eval::CellName(table.cell);
  std::vector<Cells> lines = {Header(columns)};
  std::string failures;
  const CellQuality* any = nullptr;
  for (const EvalRow& row : table.rows) {
    if (row.quality) {
      any = &*row.quality;
      lines.push_back(RowCells(row, columns));
    } else {
      failures.append("  ").append(row.name).append(": ").append(row.quality.error().message);
      failures += "\n";
    }
  }
  if (any != nullptr) {
    text +=
        Format(": %lld prompts, %lld positions, %lld of them sure; ppl of the %s, raw %.4f",
               static_cast<long long>(any->prompts), static_cast<long long>(any->positions),
               static_cast<long long>(any->sure_positions), table.text.c_str(), any->ppl_raw.value);
    if (any->scored_prompts > 0) {
      text += Format("; task: %s, raw %s %%%s", table.measure.c_str(),
                     Percent(any->score_raw.value).c_str(),
                     TaskCounts(*any) ? "" : ", too little to judge by: look at agreement");
    }
    text.append("\n").append(Align(lines));
  } else {
    text += ": nothing was measured\n";
  }
  return text + failures;
}

}  // namespace

std::string EvalJson(const EvalReport& report) {
  Json json;
  json["model"] = report.model;
  json["numerics"] = report.numerics;
  json["data_sha256"] = report.data_hash;
  json["seed"] = report.seed;
  json["continuation_tokens"] = report.continuation_tokens;
  json["every_block"] = report.every_block;
  json["results"] = Json::array();
  for (const EvalTable& table : report.tables) {
    for (const EvalRow& row : table.rows) {
      json["results"].push_back(RowJson(table, row));
    }
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string EvalText(const EvalReport& report, const std::vector<std::string>& columns) {
  std::string text;
  for (const EvalTable& table : report.tables) {
    text.append(text.empty() ? "" : "\n").append(TableText(table, columns));
  }
  return text;
}

std::vector<workload::Plot> EvalPlots(const EvalReport& report) {
  constexpr double kLeastKl = 1e-6;  // nats: what rounding of logits alone does
  std::vector<workload::Plot> plots;
  for (const EvalTable& table : report.tables) {
    workload::Plot plot{.title = eval::CellName(table.cell),
                        .x_label = "bits per KV value, every byte counted",
                        .y_label = "KL from the raw run, nats a position",
                        .log_x = false,
                        .series = {},
                        .log_y = true,
                        .marks = true};
    std::map<std::string, size_t> series;  // by family
    for (const EvalRow& row : table.rows) {
      if (!row.quality || row.quality->kl.value < kLeastKl) {
        continue;
      }
      const bool spelled_out = row.name.find("->") != std::string::npos;
      const std::string family =
          spelled_out ? "pipelines" : row.name.substr(0, row.name.rfind('-'));
      const auto [at, added] = series.emplace(family, plot.series.size());
      if (added) {
        plot.series.push_back({.name = family, .points = {}});
      }
      plot.series[at->second].points.emplace_back(row.quality->bits_per_value.value,
                                                  row.quality->kl.value);
    }
    for (workload::Series& one : plot.series) {
      std::sort(one.points.begin(), one.points.end());
    }
    plots.push_back(std::move(plot));
  }
  return plots;
}

}  // namespace kvik::app
