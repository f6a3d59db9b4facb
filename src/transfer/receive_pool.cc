// SPDX-License-Identifier: Apache-2.0
#include "transfer/receive_pool.h"

#include <utility>

namespace kvik::transfer {

ReceivePool::Buffer ReceivePool::Allocate(size_t size_bytes, size_t cost_bytes,
                                          std::shared_ptr<ReceiveWindow> window) {
  const bool common = size_bytes > common_bytes_ / 2 && size_bytes <= common_bytes_;
  std::unique_ptr<std::byte[]> memory;
  if (common) {
    MutexLock lock(mutex_);
    if (!kept_.empty()) {
      memory = std::move(kept_.back());
      kept_.pop_back();
    }
  }
  if (memory == nullptr) {
    // Not zeroed: it is written at once.
    memory.reset(new std::byte[common ? common_bytes_ : size_bytes]);
  }
  live_.fetch_add(1);
  std::byte* const bytes = memory.release();
  return Buffer{std::shared_ptr<std::byte>(bytes,
                                           [pool = shared_from_this(), window = std::move(window),
                                            cost_bytes, common](std::byte* freed) {
                                             pool->Free(freed, common);
                                             if (window != nullptr) {
                                               window->Return(cost_bytes);
                                             }
                                           }),
                std::span(bytes, size_bytes)};
}

void ReceivePool::Free(std::byte* memory, bool common) {
  std::unique_ptr<std::byte[]> owner(memory);
  live_.fetch_sub(1);
  if (common) {
    MutexLock lock(mutex_);
    if (kept_.size() < max_kept_) {
      kept_.push_back(std::move(owner));
    }
  }
}

}  // namespace kvik::transfer
