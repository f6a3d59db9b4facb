// SPDX-License-Identifier: Apache-2.0
#include "store/block_recycler.h"

#include <cstdlib>

namespace kvik::store {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kSmallestKept = size_t{64} << 10;  // smaller ones the allocator keeps itself
constexpr size_t kOfProcessBytes = size_t{64} << 20;

}  // namespace

BlockRecycler::~BlockRecycler() {
  for (const auto& [size_bytes, data] : kept_) {
    std::free(data);
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
    const auto fitting = kept_.lower_bound(rounded);
    if (fitting != kept_.end() && fitting->first <= rounded + rounded / 8) {
      const Block block{fitting->second, fitting->first};
      kept_bytes_ -= block.size_bytes;
      kept_.erase(fitting);
      return block;
    }
  }
  return {static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)), rounded};
}

void BlockRecycler::Give(Block block) {
  if (block.data == nullptr) {
    return;
  }
  if (block.size_bytes >= kSmallestKept) {
    MutexLock lock(mutex_);
    if (kept_bytes_ + block.size_bytes <= limit_bytes_) {
      kept_.emplace(block.size_bytes, block.data);
      kept_bytes_ += block.size_bytes;
      return;
    }
  }
  std::free(block.data);
}

size_t BlockRecycler::kept_bytes() const {
  MutexLock lock(mutex_);
  return kept_bytes_;
}

}  // namespace kvik::store
