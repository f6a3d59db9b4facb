// SPDX-License-Identifier: Apache-2.0
#include "server/block_holders.h"

#include <algorithm>

namespace kvik::server {
namespace {

// Taken over under one lock: requests that are routed meanwhile wait no longer than for these.
constexpr size_t kBlocksAtOnce = 1024;

}  // namespace

void BlockHolders::OnForget(uint64_t node) {
  Held gone;  // destroyed when the lock is free again
  MutexLock lock(mutex_);
  const auto it = nodes_.find(node);
  if (it != nodes_.end()) {
    num_blocks_ -= it->second.size();
    gone.swap(it->second);
    nodes_.erase(it);
  }
}

void BlockHolders::OnEvents(uint64_t node, std::span<const events::ReceivedEvent> events) {
  for (const events::ReceivedEvent& event : events) {
    if (event.kind == kv::BlockEventKind::kCleared) {
      OnForget(node);
    }
    const auto medium = static_cast<uint8_t>(1U << static_cast<unsigned>(event.medium));
    std::span<const uint64_t> blocks = event.blocks;
    do {
      const auto some = blocks.first(std::min(kBlocksAtOnce, blocks.size()));
      blocks = blocks.subspan(some.size());
      MutexLock lock(mutex_);
      Held& held = nodes_[node];
      for (const uint64_t block : some) {
        if (event.kind == kv::BlockEventKind::kStored) {
          Store(held, block, medium);
        } else {
          Remove(held, block, medium);
        }
      }
    } while (!blocks.empty());
  }
}

void BlockHolders::Store(Held& held, uint64_t block, uint8_t medium) {
  const auto it = held.find(block);
  if (it != held.end()) {
    it->second |= medium;
  } else if (num_blocks_ < max_blocks_) {
    held.emplace(block, medium);
    ++num_blocks_;
  }
}

void BlockHolders::Remove(Held& held, uint64_t block, uint8_t medium) {
  const auto it = held.find(block);
  if (it == held.end()) {
    return;
  }
  it->second &= static_cast<uint8_t>(~medium);
  if (it->second == 0) {
    held.erase(it);
    --num_blocks_;
  }
}

std::optional<int64_t> BlockHolders::PrefixAt(uint64_t node,
                                              std::span<const uint64_t> blocks) const {
  MutexLock lock(mutex_);
  const auto it = nodes_.find(node);
  if (it == nodes_.end()) {
    return std::nullopt;
  }
  const auto end = std::find_if(blocks.begin(), blocks.end(),
                                [&](uint64_t block) { return !it->second.contains(block); });
  return end - blocks.begin();
}

std::optional<int64_t> BlockHolders::HeldBy(uint64_t node) const {
  MutexLock lock(mutex_);
  const auto it = nodes_.find(node);
  return it == nodes_.end() ? std::nullopt : std::optional(static_cast<int64_t>(it->second.size()));
}

}  // namespace kvik::server
