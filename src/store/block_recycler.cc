// SPDX-License-Identifier: Apache-2.0
#include "store/block_recycler.h"

#include <cstdlib>
#include <iterator>

namespace kvik::store {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kSmallestKept = size_t{64} << 10;  // smaller ones the allocator keeps itself
constexpr size_t kOfProcessBytes = size_t{64} << 20;

}  // namespace

BlockRecycler::~BlockRecycler() {
  for (const Block& block : kept_) {
    std::free(block.data);
  }
}

BlockRecycler& BlockRecycler::OfProcess() {
  static auto* const recycler = new BlockRecycler(kOfProcessBytes);
  return *recycler;
}

BlockRecycler::Block BlockRecycler::Take(size_t size_bytes) {
  const size_t rounded = (size_bytes / kAlignment + 1) * kAlignment;
  if (rounded < size_bytes) {
    return {};
  }
  if (rounded >= kSmallestKept) {
    MutexLock lock(mutex_);
    const auto fitting = by_size_.lower_bound(rounded);
    if (fitting != by_size_.end() && fitting->first <= rounded + rounded / 8) {
      const Block block = *fitting->second;
      kept_bytes_ -= block.size_bytes;
      kept_.erase(fitting->second);
      by_size_.erase(fitting);
      return block;
    }
  }
  return {static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)), rounded};
}

void BlockRecycler::Give(Block block) {
  if (block.data == nullptr) {
    return;
  }
  if (block.size_bytes < kSmallestKept || block.size_bytes > limit_bytes_) {
    std::free(block.data);
    return;
  }
  std::list<Block> dropped;
  {
    MutexLock lock(mutex_);
    kept_.push_back(block);
    by_size_.emplace(block.size_bytes, std::prev(kept_.end()));
    kept_bytes_ += block.size_bytes;
    while (kept_bytes_ > limit_bytes_) {
      const auto oldest = kept_.begin();
      auto at = by_size_.lower_bound(oldest->size_bytes);
      while (at->second != oldest) {
        ++at;
      }
      by_size_.erase(at);
      kept_bytes_ -= oldest->size_bytes;
      dropped.splice(dropped.end(), kept_, oldest);
    }
  }
  for (const Block& old : dropped) {
    std::free(old.data);
  }
}

size_t BlockRecycler::kept_bytes() const {
  MutexLock lock(mutex_);
  return kept_bytes_;
}

}  // namespace kvik::store
