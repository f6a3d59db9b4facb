// SPDX-License-Identifier: Apache-2.0
#include "codec/allocation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "base/check.h"
#include "codec/side_info.h"

namespace kvik::codec {
namespace {

// Values by cell [layers, kv_heads] of mix(share, high, low).
Result<std::vector<double>> ByScore(const ArgValue& value, std::string_view scores,
                                    const StageSite& site) {
  const std::array<int32_t, 2> shape = {site.model->num_layers, site.model->num_kv_heads};
  KVIK_ASSIGN(const SideTensor* const tensor, site.Need(scores, shape));
  std::vector<size_t> order(tensor->values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return tensor->values[a] < tensor->values[b]; });
  const double share = value.list[0].number;
  const auto num_low = static_cast<size_t>(std::lround(share * static_cast<double>(order.size())));
  std::vector<double> cells(order.size(), value.list[1].number);
  for (size_t i = 0; i < num_low; ++i) {
    cells[order[i]] = value.list[2].number;
  }
  return cells;
}

// The value of a layer of the forms that go by layers.
double ByLayer(const ArgValue& value, int32_t layer, int32_t num_layers) {
  if (value.word.empty()) {
    return value.number;
  }
  if (value.word == "thirds") {
    return value.list[static_cast<size_t>(int64_t{layer} * 3 / num_layers)].number;
  }
  KVIK_CHECK(value.word == "pyramid", "no form of allocation is called %s", value.word.c_str());
  const double first = value.list[0].number;
  const double last = value.list[1].number;
  return num_layers < 2 ? first : first + (last - first) * layer / (num_layers - 1);
}

}  // namespace

ParamSpec ScoresParam(std::string summary) {
  return {.name = "scores",
          .summary = std::move(summary),
          .type = ParamSpec::Type::kWord,
          .words = {"attention", "output"},
          .default_value = ArgValue::Word("attention"),
          .search = {ArgValue::Word("attention"), ArgValue::Word("output")}};
}

Result<Allocation> Allocation::Make(const ArgValue& value, bool integral, std::string_view scores,
                                    const StageSite& site) {
  const int32_t num_layers = site.model->num_layers;
  Allocation allocation;
  std::vector<double> cells;
  if (value.word == "mix") {
    KVIK_ASSIGN(cells, ByScore(value, scores, site));
    allocation.cells_a_layer_ = static_cast<size_t>(site.model->num_kv_heads);
  } else {
    // A model's numbers may be claims of a file: with no tensor to back them, heads cost nothing.
    for (int32_t layer = 0; layer < num_layers; ++layer) {
      cells.push_back(ByLayer(value, layer, num_layers));
    }
  }
  if (integral) {
    for (double& v : cells) {
      v = std::round(v);
    }
  }
  std::vector<double>& distinct = allocation.distinct_;
  distinct = cells;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  for (const double v : cells) {
    allocation.cells_.push_back(static_cast<uint32_t>(
        std::lower_bound(distinct.begin(), distinct.end(), v) - distinct.begin()));
  }
  return allocation;
}

}  // namespace kvik::codec
