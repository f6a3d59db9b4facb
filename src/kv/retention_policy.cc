// SPDX-License-Identifier: Apache-2.0
#include "kv/retention_policy.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace kvik::kv {
namespace {

// Priorities say what is kept, and the client knows why: nothing is bounded here.
constexpr double kNoPins = 0;

}  // namespace

RetentionPolicy::RetentionPolicy(std::unique_ptr<EvictionPolicy> inner,
                                 const PolicyOptions& options)
    : WithholdingPolicy(std::move(inner), options.num_blocks, kNoPins),
      block_size_tokens_(options.block_size_tokens) {}

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
  // Both from the deepest on, so what is released is met in its order.
  size_t index = access.table.size();
  for (const BlockId block : blocks) {
    while (index > 0 && access.table[index - 1] != block) {
      --index;
    }
    KVIK_CHECK(index > 0, "block %d is not in the table of its request", block);
    verdicts.push_back(VerdictOf(static_cast<int32_t>(index - 1) * block_size_tokens_, access));
  }
}

}  // namespace kvik::kv
