// SPDX-License-Identifier: Apache-2.0
#include "store/coverage.h"

#include <algorithm>

#include "base/check.h"

namespace kvik::store {

Coverage CoverageOf(int32_t num_blocks, std::span<const FoundObject> objects,
                    const kv::MinQuality& accepted) {
  std::vector<BlockRun> runs;
  for (const FoundObject& object : objects) {
    KVIK_CHECK(object.last_block < num_blocks && object.info.num_blocks >= 1 &&
               object.info.num_blocks <= object.last_block + 1);
    if (accepted.Accepts(object.info.quality)) {
      runs.push_back({object.last_block + 1 - object.info.num_blocks, object.last_block + 1});
    }
  }
  std::sort(runs.begin(), runs.end(), [](const BlockRun& a, const BlockRun& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  Coverage coverage;
  for (const BlockRun& run : runs) {
    if (!coverage.covered.empty() && run.begin <= coverage.covered.back().end) {
      coverage.covered.back().end = std::max(coverage.covered.back().end, run.end);
    } else {
      coverage.covered.push_back(run);
    }
  }
  int32_t end = 0;
  for (const BlockRun& run : coverage.covered) {
    if (run.begin > end) {
      coverage.gaps.push_back({end, run.begin});
    }
    end = run.end;
  }
  if (!coverage.covered.empty() && coverage.covered.front().begin == 0) {
    coverage.prefix_blocks = coverage.covered.front().end;
  }
  return coverage;
}

}  // namespace kvik::store
