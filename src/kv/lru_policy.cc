// SPDX-License-Identifier: Apache-2.0
#include "kv/lru_policy.h"

#include "base/check.h"

namespace kvik::kv {

LruPolicy::LruPolicy(int32_t num_blocks)
    : nodes_(static_cast<size_t>(num_blocks) + 1), sentinel_(num_blocks) {
  nodes_.back().prev = sentinel_;
  nodes_.back().next = sentinel_;
}

LruPolicy::Node& LruPolicy::At(BlockId block, State expected) {
  KVIK_CHECK(block >= 0 && block < sentinel_);
  Node& node = nodes_[static_cast<size_t>(block)];
  KVIK_CHECK(node.state == expected, "block %d is in the wrong state for the policy", block);
  return node;
}

void LruPolicy::Unlink(BlockId block) {
  const Node& node = nodes_[static_cast<size_t>(block)];
  nodes_[static_cast<size_t>(node.prev)].next = node.next;
  nodes_[static_cast<size_t>(node.next)].prev = node.prev;
  --stats_.evictable;
}

void LruPolicy::Track(const TrackedBlock& block) {
  At(block.block, State::kUnknown).state = State::kHeld;
  ++stats_.tracked;
}

void LruPolicy::Touch(std::span<const BlockId> blocks, const Access& /*access*/) {
  for (const BlockId block : blocks) {
    At(block, State::kEvictable).state = State::kHeld;
    Unlink(block);
  }
}

void LruPolicy::Release(std::span<const BlockId> blocks, const Access& /*access*/) {
  Node& end = nodes_.back();
  for (const BlockId block : blocks) {
    At(block, State::kHeld) = Node{end.prev, sentinel_, State::kEvictable};
    nodes_[static_cast<size_t>(end.prev)].next = block;
    end.prev = block;
    ++stats_.evictable;
  }
}

void LruPolicy::Forget(BlockId block) {
  KVIK_CHECK(block >= 0 && block < sentinel_);
  Node& node = nodes_[static_cast<size_t>(block)];
  KVIK_CHECK(node.state != State::kUnknown, "block %d is not tracked", block);
  if (node.state == State::kEvictable) {
    Unlink(block);
  }
  node.state = State::kUnknown;
  --stats_.tracked;
}

std::vector<BlockId> LruPolicy::SelectVictims(size_t count, int64_t /*now_us*/) {
  KVIK_CHECK(count <= static_cast<size_t>(stats_.evictable));
  std::vector<BlockId> victims;
  victims.reserve(count);
  while (victims.size() < count) {
    victims.push_back(nodes_.back().next);
    Forget(victims.back());
  }
  stats_.evicted += static_cast<int64_t>(count);
  return victims;
}

}  // namespace kvik::kv
