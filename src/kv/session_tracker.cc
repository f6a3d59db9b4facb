// SPDX-License-Identifier: Apache-2.0
#include "kv/session_tracker.h"

#include <utility>

#include "base/check.h"

namespace kvik::kv {
SessionTracker::SessionTracker(size_t max_blocks) : max_young_(max_blocks / 2) {
  KVIK_CHECK(max_blocks >= 2);
}

SessionTracker::Block* SessionTracker::Find(uint64_t digest) {
  if (const auto it = young_.find(digest); it != young_.end()) {
    return &it->second;
  }
  const auto it = old_.find(digest);
  return it == old_.end() ? nullptr : &it->second;
}

SessionTracker::Block& SessionTracker::See(uint64_t digest) {
  if (const auto it = young_.find(digest); it != young_.end()) {
    return it->second;
  }
  Block block;
  if (const auto it = old_.find(digest); it != old_.end()) {
    block = it->second;
    old_.erase(it);
  }
  if (young_.size() == max_young_) {
    old_ = std::exchange(young_, {});
  }
  return young_[digest] = block;
}

SessionTurn SessionTracker::Arrive(std::span<const uint64_t> blocks) {
  size_t known = blocks.size();
  while (known > 0 && Find(blocks[known - 1]) == nullptr) {
    --known;
  }
  SessionTurn request;
  bool continues = false;
  for (size_t back = 0; back < size_t{kEndWithinBlocks} && back < known && !continues; ++back) {
    const Block* block = Find(blocks[known - 1 - back]);
    if (block != nullptr && block->is_end) {
      request = SessionTurn{block->end.session, block->end.turn + 1};
      continues = true;
    }
  }
  if (!continues) {
    request = SessionTurn{num_sessions_++, 1};
  }
  Grow(request, blocks, blocks.size());
  return request;
}

void SessionTracker::Grow(const SessionTurn& request, std::span<const uint64_t> blocks,
                          size_t total_blocks) {
  for (const uint64_t digest : blocks) {
    See(digest);
  }
  if (!blocks.empty() && total_blocks >= kMinBlocksToContinue) {
    See(blocks.back()) = Block{true, request};
  }
}

}  // namespace kvik::kv
