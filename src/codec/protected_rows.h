// SPDX-License-Identifier: Apache-2.0
// codec/protected_rows.h: which rows of a tile a quantizer treats better than the others: the first
// positions of the context (attention sinks) and the most recent tokens of the prompt.
#pragma once

#include <cstddef>
#include <cstdint>

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

}  // namespace kvik::codec
