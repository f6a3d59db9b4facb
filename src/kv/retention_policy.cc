// SPDX-License-Identifier: Apache-2.0
#include "kv/retention_policy.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace kvik::kv {
namespace {

// Priorities say what is kept, and the client knows why: nothing is bounded here.
constexpr double kNoPins = 0;

}  // namespace

RetentionPolicy::RetentionPolicy(std::unique_ptr<EvictionPolicy> inner,
                                 const PolicyOptions& options)
    : WithholdingPolicy(std::move(inner), options.num_blocks, kNoPins),
      block_size_tokens_(options.block_size_tokens),
      first_pos_(static_cast<size_t>(options.num_blocks)) {}

void RetentionPolicy::Track(const TrackedBlock& block) {
  first_pos_[static_cast<size_t>(block.block)] = block.first_pos;
  WithholdingPolicy::Track(block);
}

// A block that a range covers in part is covered; of several the highest priority counts, then the
// longest duration.
RetentionPolicy::Verdict RetentionPolicy::VerdictOf(int32_t first_token,
                                                    const Access& access) const {
  const Retention& retention = *access.request.retention;
  const int32_t end = first_token + block_size_tokens_;
  const int32_t prompt_end = access.request.prompt_tokens;
  std::tuple<int32_t, int64_t> best{-1, 0};
  for (const RetentionRange& range : retention.ranges) {
    if (range.start_token < std::min(end, prompt_end) &&
        first_token < std::min(range.end_token, prompt_end)) {
      best = std::max(best, {range.priority, range.duration_us});
    }
  }
  if (end > prompt_end) {
    best = std::max(best, {retention.decode_priority, retention.decode_duration_us});
  }
  const auto [priority, duration_us] = best;
  if (priority < 0 || priority == kDefaultPriority) {
    return {};
  }
  return {
      .priority = priority,
      .until_us = duration_us < kForGood - access.now_us ? access.now_us + duration_us : kForGood};
}

void RetentionPolicy::Judge(std::span<const BlockId> blocks, const Access& access,
                            std::vector<Verdict>& verdicts) {
  if (access.request.retention == nullptr) {
    return;
  }
  for (const BlockId block : blocks) {
    verdicts.push_back(VerdictOf(first_pos_[static_cast<size_t>(block)], access));
  }
}

}  // namespace kvik::kv
