// SPDX-License-Identifier: Apache-2.0
// kv/residency_sampler.h: how long cached blocks live, idle and wait to be used again.
//
// Watches a share of the contents, chosen by their digest, so that equal runs watch equal blocks
// and a block stays watched for all of its life. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/types.h"

namespace kvik::kv {

enum class ResidencyEvent : uint8_t {
  kReuseGap,         // from publication or the last use to the next one
  kLifetime,         // from publication to eviction
  kIdleBeforeEvict,  // from publication or the last use to eviction
};

struct ResidencySample {
  ResidencyEvent event = ResidencyEvent::kReuseGap;
  int64_t duration_us = 0;
};

class ResidencySampler {
 public:
  // `share` of the contents, in [0, 1]. Block ids are [0, num_blocks).
  ResidencySampler(double share, int32_t num_blocks);

  void Published(BlockId block, uint64_t content, int64_t now_us);
  void Used(BlockId block, int64_t now_us);
  // To make room, or for another reason. REQUIRES: published.
  void Evicted(BlockId block, int64_t now_us);

  // What was seen since the last call.
  [[nodiscard]] std::vector<ResidencySample> Take() { return std::exchange(samples_, {}); }

 private:
  static constexpr int64_t kNotWatched = -1;
  struct Block {
    int64_t published_us = kNotWatched;
    int64_t used_us = 0;  // or published
  };
  Block& At(BlockId block) { return blocks_[static_cast<size_t>(block)]; }

  double share_;
  std::vector<Block> blocks_;
  std::vector<ResidencySample> samples_;
};

}  // namespace kvik::kv
