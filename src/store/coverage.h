// SPDX-License-Identifier: Apache-2.0
// store/coverage.h: which blocks of a request the found objects would provide. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/block_key.h"
#include "store/tier.h"

namespace kvik::store {

struct BlockRun {
  int32_t begin = 0;  // blocks [begin, end)
  int32_t end = 0;
  friend bool operator==(const BlockRun&, const BlockRun&) = default;
};

struct Coverage {
  int32_t prefix_blocks = 0;      // the run from block 0
  std::vector<BlockRun> covered;  // maximal, ascending
  std::vector<BlockRun> gaps;     // uncovered runs before the last covered block, ascending
};

// Of `num_blocks` blocks, by those objects whose quality `accepted` accepts.
Coverage CoverageOf(int32_t num_blocks, std::span<const FoundObject> objects,
                    const kv::MinQuality& accepted);

}  // namespace kvik::store
