// SPDX-License-Identifier: Apache-2.0
#include "workload/sweep.h"

#include <algorithm>
#include <charconv>

#include "base/format.h"
#include "workload/replay_table.h"

namespace kvik::workload {
namespace {

struct KnobFacts {
  Sweep::Knob knob;
  std::string_view name;
  std::string_view axis;
  double least;
  double most;
  bool log_x;
};

constexpr KnobFacts kKnobs[] = {
    {Sweep::Knob::kLifespan, "lifespan", "lifespan, x P99 of all gaps (offline)", 1e-6, 1e6, true},
    {Sweep::Knob::kReuseProb, "reuse-prob", "reuse probability at the lifespan", 1e-6, 0.999999,
     false},
    {Sweep::Knob::kSlopeRatio, "slope-ratio", "slope ratio", 1.000001, 1e6, true},
};

const KnobFacts& FactsOf(Sweep::Knob knob) { return kKnobs[static_cast<size_t>(knob)]; }

// Sizes of the cache, in the order they first come.
std::vector<int32_t> SizesOf(std::span<const SweepCell> cells) {
  std::vector<int32_t> sizes;
  for (const SweepCell& c : cells) {
    if (std::find(sizes.begin(), sizes.end(), c.cell.cache_blocks) == sizes.end()) {
      sizes.push_back(c.cell.cache_blocks);
    }
  }
  return sizes;
}

std::string TitleOf(const ReplayCell& cell) {
  return cell.trace + ", " + std::to_string(cell.cache_blocks) + " blocks";
}

}  // namespace

Result<Sweep> ParseSweep(std::string_view text) {
  const size_t equals = text.find('=');
  const auto facts = std::find_if(std::begin(kKnobs), std::end(kKnobs), [&](const KnobFacts& f) {
    return f.name == text.substr(0, equals);
  });
  if (facts == std::end(kKnobs) || equals == std::string_view::npos) {
    return Err(ErrorCode::kInvalidInput,
               "sweep \"%s\": give lifespan=, reuse-prob= or slope-ratio= and a list of values",
               std::string(text).c_str());
  }
  Sweep sweep{facts->knob, {}};
  for (std::string_view left = text.substr(equals + 1);;) {
    const std::string_view word = left.substr(0, left.find(','));
    double value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size() ||
        !(value >= facts->least && value <= facts->most)) {
      return Err(ErrorCode::kInvalidInput, "sweep of %s: \"%s\" is no number from %g to %g",
                 std::string(facts->name).c_str(), std::string(word).c_str(), facts->least,
                 facts->most);
    }
    sweep.values.push_back(value);
    if (word.size() == left.size()) {
      return sweep;
    }
    left.remove_prefix(word.size() + 1);
  }
}

std::string_view AxisOf(Sweep::Knob knob) { return FactsOf(knob).axis; }

void Turn(Sweep::Knob knob, double value, PolicyVariant& variant, kv::PolicyOptions& shared) {
  switch (knob) {
    case Sweep::Knob::kLifespan:
      variant.lifespan_in_p99 = value;
      break;
    case Sweep::Knob::kReuseProb:
      shared.reuse_prob = value;
      break;
    case Sweep::Knob::kSlopeRatio:
      shared.slope_ratio = value;
      break;
  }
}

std::string SweepCellJson(const Sweep& sweep, const SweepCell& cell) {
  return Format("{\"knob\":\"%s\",\"value\":%g,", std::string(FactsOf(sweep.knob).name).c_str(),
                cell.value) +
         CellJson(cell.cell).substr(1);
}

std::string FormatSweep(const Sweep& sweep, std::span<const SweepCell> cells) {
  std::string text;
  for (const int32_t size : SizesOf(cells)) {
    std::string header = Format("%-40s", std::string(AxisOf(sweep.knob)).c_str());
    std::string title;
    std::string lines;
    for (const double value : sweep.values) {
      lines += Format("%-40g", value);
      for (const SweepCell& c : cells) {
        if (c.value != value || c.cell.cache_blocks != size) {
          continue;
        }
        const int width = std::max(12, static_cast<int>(c.cell.policy.size()) + 2);
        if (value == sweep.values.front()) {
          header += Format("%*s", width, c.cell.policy.c_str());
        }
        title = TitleOf(c.cell);
        lines += Format("%*.1f", width, c.cell.miss_cost_pct);
      }
      lines += "\n";
    }
    text += title + ": miss cost, %\n" + header + "\n" + lines;
  }
  return text;
}

std::vector<Plot> SweepPlots(const Sweep& sweep, std::span<const SweepCell> cells) {
  std::vector<Plot> plots;
  for (const int32_t size : SizesOf(cells)) {
    Plot plot{"", std::string(AxisOf(sweep.knob)), "miss cost, %", FactsOf(sweep.knob).log_x, {}};
    for (const SweepCell& c : cells) {
      if (c.cell.cache_blocks != size) {
        continue;
      }
      plot.title = TitleOf(c.cell);
      auto series = std::find_if(plot.series.begin(), plot.series.end(),
                                 [&](const Series& other) { return other.name == c.cell.policy; });
      if (series == plot.series.end()) {
        series = plot.series.insert(series, Series{c.cell.policy, {}});
      }
      series->points.emplace_back(c.value, c.cell.miss_cost_pct);
    }
    for (Series& series : plot.series) {
      std::sort(series.points.begin(), series.points.end());
    }
    plots.push_back(std::move(plot));
  }
  return plots;
}

}  // namespace kvik::workload
