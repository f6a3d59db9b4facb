// SPDX-License-Identifier: Apache-2.0
// model/batch.h: what one forward pass computes and what it returns.
//
// A step concatenates the tokens of any number of requests: prefill chunks (which may jump over
// cached tokens) and decodes alike. A *segment* is a run of consecutive positions of one request;
// a chunk that spans a gap in the cache is several segments with the same block table. Results of
// a row depend only on its token, its position and the KV it attends to, never on the other rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/types.h"
#include "kv/block_masks.h"

namespace kvik::model {

// Rows [first_row, first_row + num_tokens) of the batch are the tokens at positions
// [first_pos, first_pos + num_tokens) of one request.
struct Segment {
  int32_t first_row = 0;
  int32_t num_tokens = 0;  // >= 1
  int32_t first_pos = 0;
  // Block of every block_size_tokens positions from position 0 on; covers at least position
  // first_pos + num_tokens - 1. Positions below first_pos hold KV already, from earlier steps or
  // from other segments of this batch. Borrowed until Forward returns.
  std::span<const BlockId> block_table;
};

// Row-major concatenation. Reuse one object across steps: Clear() keeps the capacity.
struct StepBatch {
  std::vector<TokenId> tokens;      // [rows]
  std::vector<int32_t> positions;   // [rows]; what the segments say, spelled out
  std::vector<Segment> segments;    // in row order, covering every row exactly once
  std::vector<int32_t> logit_rows;  // rows whose next-token logits are wanted, ascending
  // Slots that attention leaves out, none of them of a position in the batch; null: none. Borrowed
  // until Forward returns.
  const kv::BlockMasks* masks = nullptr;

  [[nodiscard]] int32_t num_rows() const { return static_cast<int32_t>(tokens.size()); }

  // Appends a segment and its rows; `want_logits` asks for those of its last token.
  void Add(std::span<const TokenId> segment_tokens, int32_t first_pos,
           std::span<const BlockId> block_table, bool want_logits);

  void Clear() {
    tokens.clear();
    positions.clear();
    segments.clear();
    logit_rows.clear();
    masks = nullptr;
  }
};

// [num_rows, vocab_size] float32, row i belongs to logit_rows[i]. Borrowed from the model: valid
// until its next Forward.
struct LogitsView {
  const float* data = nullptr;
  int32_t num_rows = 0;
  int32_t vocab_size = 0;

  [[nodiscard]] std::span<const float> Row(int32_t i) const {
    return {data + static_cast<size_t>(i) * static_cast<size_t>(vocab_size),
            static_cast<size_t>(vocab_size)};
  }
};

}  // namespace kvik::model
