// SPDX-License-Identifier: Apache-2.0
// kv/block_range.h: consecutive blocks of one request, numbered by position: block i holds tokens
// [i * block_size_tokens, (i + 1) * block_size_tokens).
#pragma once

#include <cstdint>

namespace kvik::kv {

// Blocks [first_block, first_block + num_blocks).
struct BlockRange {
  int32_t first_block = 0;
  int32_t num_blocks = 0;  // >= 1
  [[nodiscard]] int32_t end_block() const { return first_block + num_blocks; }
  friend bool operator==(const BlockRange&, const BlockRange&) = default;
};

}  // namespace kvik::kv
