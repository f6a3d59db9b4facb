// SPDX-License-Identifier: Apache-2.0
#include "model/batch.h"

namespace kvik::model {

void StepBatch::Add(std::span<const TokenId> segment_tokens, int32_t first_pos,
                    std::span<const BlockId> block_table, bool want_logits) {
  const int32_t first_row = num_rows();
  const auto count = static_cast<int32_t>(segment_tokens.size());
  tokens.insert(tokens.end(), segment_tokens.begin(), segment_tokens.end());
  for (int32_t i = 0; i < count; ++i) {
    positions.push_back(first_pos + i);
  }
  segments.push_back(Segment{first_row, count, first_pos, block_table});
  if (want_logits) {
    logit_rows.push_back(first_row + count - 1);
  }
}

}  // namespace kvik::model
