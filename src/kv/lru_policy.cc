// SPDX-License-Identifier: Apache-2.0
#include "kv/lru_policy.h"

#include "base/check.h"

namespace kvik::kv {

LruPolicy::LruPolicy(int32_t num_blocks)
    : blocks_(num_blocks), nodes_(static_cast<size_t>(num_blocks) + 1), sentinel_(num_blocks) {
  nodes_.back().prev = sentinel_;
  nodes_.back().next = sentinel_;
}

void LruPolicy::Unlink(BlockId block) {
  const Node& node = nodes_[static_cast<size_t>(block)];
  nodes_[static_cast<size_t>(node.prev)].next = node.next;
  nodes_[static_cast<size_t>(node.next)].prev = node.prev;
}

void LruPolicy::Track(const TrackedBlock& block) { blocks_.Track(block.block, {}); }

void LruPolicy::Touch(std::span<const BlockId> blocks, const Access& /*access*/) {
  for (const BlockId block : blocks) {
    blocks_.Hold(block);
    Unlink(block);
  }
}

void LruPolicy::Release(std::span<const BlockId> blocks, const Access& /*access*/) {
  Node& end = nodes_.back();
  for (const BlockId block : blocks) {
    blocks_.Free(block);
    nodes_[static_cast<size_t>(block)] = Node{end.prev, sentinel_};
    nodes_[static_cast<size_t>(end.prev)].next = block;
    end.prev = block;
  }
}

void LruPolicy::Forget(BlockId block) {
  if (blocks_.At(block).use == BlockUse::kEvictable) {
    Unlink(block);
  }
  blocks_.Leave(block);
}

std::vector<BlockId> LruPolicy::SelectVictims(size_t count, int64_t /*now_us*/) {
  KVIK_CHECK(count <= static_cast<size_t>(blocks_.stats().evictable));
  std::vector<BlockId> victims;
  victims.reserve(count);
  while (victims.size() < count) {
    victims.push_back(nodes_.back().next);
    Forget(victims.back());
  }
  blocks_.CountVictims(count);
  return victims;
}

}  // namespace kvik::kv
