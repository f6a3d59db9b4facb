// SPDX-License-Identifier: Apache-2.0
// connector/chunk.h: where a prefix is cut into objects: at multiples of the chunk from position 0.
// The last chunk of a request may be shorter; it ends with a full block. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kv/connector.h"

namespace kvik::connector {

struct ChunkLayout {
  int32_t chunk_blocks = 16;  // >= 1

  // At least one block.
  static ChunkLayout Of(int32_t chunk_tokens, int32_t block_size_tokens) {
    return {std::max(1, chunk_tokens / block_size_tokens)};
  }
  [[nodiscard]] int32_t FirstBlockOf(int32_t block) const {
    return block / chunk_blocks * chunk_blocks;
  }
  // The chunk that holds `block` of a request with `num_blocks` full blocks.
  [[nodiscard]] kv::BlockRange ChunkOf(int32_t block, int32_t num_blocks) const {
    const int32_t first = FirstBlockOf(block);
    return {first, std::min(chunk_blocks, num_blocks - first)};
  }
  // Whether an object of `num_blocks` that ends with `last_block` is one of this layout's: it
  // begins at a boundary and does not reach over one.
  [[nodiscard]] bool Fits(int32_t last_block, int32_t num_blocks) const {
    return num_blocks >= 1 && last_block - num_blocks + 1 == FirstBlockOf(last_block);
  }
};

}  // namespace kvik::connector
