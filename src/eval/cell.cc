// SPDX-License-Identifier: Apache-2.0
#include "eval/cell.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <system_error>

namespace kvik::eval {
namespace {

constexpr int32_t kMaxTarget = 1 << 24;

struct Lengths {
  const char* workload;
  std::vector<int32_t> targets;
};

const std::vector<Lengths>& KnownLengths() {
  static const auto* lengths = new std::vector<Lengths>{{"math", {128, 1024}},
                                                        {"code", {128, 1024}},
                                                        {"qa", {128, 1024, 6144}},
                                                        {"summarization", {1024, 6144}}};
  return *lengths;
}

}  // namespace

std::string CellName(const Cell& cell) {
  if (cell.target_tokens == 0) {
    return cell.workload;
  }
  const int32_t tokens = cell.target_tokens;
  return cell.workload + ":" +
         (tokens % 1024 == 0 ? std::to_string(tokens / 1024) + "K" : std::to_string(tokens));
}

Result<Cell> ParseCell(std::string_view text) {
  const size_t colon = text.rfind(':');
  Cell cell{.workload = std::string(text.substr(0, std::min(colon, text.size())))};
  const auto wrong = [&] {
    return Err(ErrorCode::kInvalidInput,
               "'%s' is no cell: a workload, or a workload and a length as in qa:1K or math:128",
               std::string(text).c_str());
  };
  if (cell.workload.empty()) {
    return wrong();
  }
  if (colon == std::string_view::npos) {
    return cell;
  }
  std::string_view length = text.substr(colon + 1);
  int32_t unit = 1;
  if (!length.empty() && (length.back() == 'K' || length.back() == 'k')) {
    unit = 1024;
    length.remove_suffix(1);
  }
  int32_t value = 0;
  const char* end = length.data() + length.size();
  const auto [rest, error] = std::from_chars(length.data(), end, value);
  if (error != std::errc() || rest != end || value < 1 || value > kMaxTarget / unit) {
    return wrong();
  }
  cell.target_tokens = value * unit;
  return cell;
}

Result<std::vector<Cell>> ParseCells(std::string_view text) {
  std::vector<Cell> cells;
  while (true) {
    const size_t comma = std::min(text.find(','), text.size());
    KVIK_ASSIGN(const Cell cell, ParseCell(text.substr(0, comma)));
    if (std::find(cells.begin(), cells.end(), cell) == cells.end()) {
      cells.push_back(cell);
    }
    if (comma == text.size()) {
      return cells;
    }
    text.remove_prefix(comma + 1);
  }
}

std::vector<Cell> StandardCells(std::span<const EvalItem> items) {
  std::map<std::string, bool> present;  // and whether its lengths are known
  for (const EvalItem& item : items) {
    present.emplace(item.workload, false);
  }
  std::vector<Cell> cells;
  for (const Lengths& known : KnownLengths()) {
    const auto at = present.find(known.workload);
    if (at != present.end()) {
      at->second = true;
      for (const int32_t target : known.targets) {
        cells.push_back({known.workload, target});
      }
    }
  }
  for (const auto& [workload, known] : present) {
    if (!known) {
      cells.push_back({workload, 0});
    }
  }
  return cells;
}

}  // namespace kvik::eval
