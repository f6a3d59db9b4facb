// SPDX-License-Identifier: Apache-2.0
#include "workload/reference.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

namespace kvik::workload {
namespace {

constexpr std::array<std::string_view, 4> kColumns = {"trace", "cache_blocks", "policy",
                                                      "miss_cost_pct"};

std::vector<std::string_view> Split(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const size_t comma = line.find(',');
    fields.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) {
      return fields;
    }
    line.remove_prefix(comma + 1);
  }
}

template <typename Number>
std::optional<Number> ParseNumber(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number)
                                                                  : std::nullopt;
}

}  // namespace

Result<Reference> Reference::Parse(std::string_view text, const std::string& name) {
  Reference reference;
  std::array<size_t, kColumns.size()> column{};
  size_t num_columns = 0;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    if (line.empty()) {
      continue;
    }
    const std::vector<std::string_view> fields = Split(line);
    if (num_columns == 0) {
      num_columns = fields.size();
      for (size_t c = 0; c < kColumns.size(); ++c) {
        const auto at = std::find(fields.begin(), fields.end(), kColumns[c]);
        if (at == fields.end()) {
          return Err(ErrorCode::kInvalidInput, "%s:%zu: no column \"%s\" in the line of names",
                     name.c_str(), number, std::string(kColumns[c]).c_str());
        }
        column[c] = static_cast<size_t>(at - fields.begin());
      }
      continue;
    }
    if (fields.size() != num_columns) {
      return Err(ErrorCode::kInvalidInput, "%s:%zu: %zu fields, but %zu names", name.c_str(),
                 number, fields.size(), num_columns);
    }
    const auto blocks = ParseNumber<int32_t>(fields[column[1]]);
    const auto percent = ParseNumber<double>(fields[column[3]]);
    if (!blocks || !percent) {
      return Err(ErrorCode::kInvalidInput, "%s:%zu: cache_blocks or miss_cost_pct is no number",
                 name.c_str(), number);
    }
    reference.cells_[{std::string(fields[column[0]]), *blocks, std::string(fields[column[2]])}] =
        *percent;
  }
  return reference;
}

std::optional<double> Reference::MissCostPct(const std::string& trace, int32_t cache_blocks,
                                             const std::string& policy) const {
  const auto it = cells_.find({trace, cache_blocks, policy});
  return it == cells_.end() ? std::nullopt : std::optional(it->second);
}

}  // namespace kvik::workload
