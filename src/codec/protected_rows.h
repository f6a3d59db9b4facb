// SPDX-License-Identifier: Apache-2.0
// codec/protected_rows.h: which rows of a tile a quantizer treats better than the others: the first
// positions of the context (attention sinks) and the most recent tokens of the prompt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "codec/stage_args.h"
#include "codec/tile.h"

namespace kvik::codec {

// Rows [0, begin) and [end, rows) are protected; begin <= end.
struct RowSplit {
  size_t begin = 0;
  size_t end = 0;
  [[nodiscard]] size_t body() const { return end - begin; }
};

// Protects positions below `sinks` and, where the prompt's length is known, from its last `recent`
// tokens on.
inline RowSplit SplitRows(const TileContext& context, int64_t sinks, int64_t recent) {
  const size_t rows = context.positions.size();
  RowSplit split{0, rows};
  while (split.begin < rows && context.positions[split.begin] < sinks) {
    ++split.begin;
  }
  if (context.prompt_tokens > 0 && recent > 0) {
    while (split.end > split.begin &&
           context.positions[split.end - 1] >= context.prompt_tokens - recent) {
      --split.end;
    }
  }
  return split;
}

// The parameters `sinks` and `recent` of a quantizer, for its list.
inline ParamSpec ProtectedTokensParam(const char* name, const char* summary, double default_value,
                                      std::initializer_list<double> search) {
  ParamSpec param{.name = name,
                  .summary = summary,
                  .type = ParamSpec::Type::kInteger,
                  .min = 0,
                  .max = 65536,
                  .default_value = ArgValue::Number(default_value)};
  for (const double tokens : search) {
    param.search.push_back(ArgValue::Number(tokens));
  }
  return param;
}
inline ParamSpec SinksParam(double default_value) {
  return ProtectedTokensParam("sinks", "first positions of the context that are protected",
                              default_value, {0, 4});
}
inline ParamSpec RecentParam(std::initializer_list<double> search) {
  return ProtectedTokensParam("recent", "last tokens of the prompt that are protected", 0, search);
}

}  // namespace kvik::codec
