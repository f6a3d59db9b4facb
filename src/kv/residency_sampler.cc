// SPDX-License-Identifier: Apache-2.0
#include "kv/residency_sampler.h"

#include "base/rng.h"

namespace kvik::kv {

ResidencySampler::ResidencySampler(double share, int32_t num_blocks)
    : share_(share), blocks_(static_cast<size_t>(num_blocks)) {}

void ResidencySampler::Published(BlockId block, uint64_t content, int64_t now_us) {
  const bool watched = Rng(content).Uniform() < share_;
  At(block) = Block{watched ? now_us : kNotWatched, now_us};
}

void ResidencySampler::Used(BlockId block, int64_t now_us) {
  Block& b = At(block);
  if (b.published_us != kNotWatched) {
    samples_.push_back({ResidencyEvent::kReuseGap, now_us - b.used_us});
    b.used_us = now_us;
  }
}

void ResidencySampler::Evicted(BlockId block, int64_t now_us) {
  Block& b = At(block);
  if (b.published_us != kNotWatched) {
    samples_.push_back({ResidencyEvent::kLifetime, now_us - b.published_us});
    samples_.push_back({ResidencyEvent::kIdleBeforeEvict, now_us - b.used_us});
    b.published_us = kNotWatched;
  }
}

}  // namespace kvik::kv
