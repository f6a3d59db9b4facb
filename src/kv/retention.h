// SPDX-License-Identifier: Apache-2.0
// kv/retention.h: how much a client wants the KV of one request kept, by ranges of its tokens.
//
// Priorities are 0 .. 100. Blocks at the default priority are the eviction policy's to choose from;
// below it they go before all others, above it after all others. A duration counts from the moment
// the block becomes evictable; after it the block is like any other. The request that lets go of a
// block last decides.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "base/result.h"

namespace kvik::kv {

constexpr int32_t kDefaultPriority = 35;
constexpr int32_t kMaxPriority = 100;
constexpr int64_t kForGood = std::numeric_limits<int64_t>::max();

// Prompt tokens [start_token, end_token). Where ranges overlap the higher priority counts.
struct RetentionRange {
  int32_t start_token = 0;
  int32_t end_token = std::numeric_limits<int32_t>::max();  // beyond the prompt: up to its end
  int32_t priority = kDefaultPriority;
  int64_t duration_us = kForGood;
};

struct Retention {
  std::vector<RetentionRange> ranges;
  // Of generated tokens.
  int32_t decode_priority = kDefaultPriority;
  int64_t decode_duration_us = kForGood;
};

constexpr size_t kMaxRetentionRanges = 64;

// kInvalidInput begins with the field that is out of range, as "ranges[1].end".
Result<void> ValidateRetention(const Retention& retention);

}  // namespace kvik::kv
