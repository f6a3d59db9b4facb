// SPDX-License-Identifier: Apache-2.0
// transfer/receive_pool.h: memory of received messages, and the account of what was dropped again.
// Thread-safe: readers drop messages on any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"

namespace kvik::transfer {

// Credit of one stream on its way back to the sender.
class ReceiveWindow {
 public:
  // `notify` is called, by whoever drops, when another `threshold` bytes are to be taken.
  ReceiveWindow(size_t threshold, std::function<void()> notify)
      : threshold_(threshold), notify_(std::move(notify)) {}

  void Return(size_t bytes) {
    const size_t before = returned_.fetch_add(bytes);
    if (before < threshold_ && before + bytes >= threshold_) {
      notify_();
    }
  }
  // What was returned since the last call.
  size_t Take() { return returned_.exchange(0); }

 private:
  const size_t threshold_;
  const std::function<void()> notify_;
  std::atomic<size_t> returned_{0};
};

// Buffers of messages; keeps a few of the common size for the next ones, because fresh memory costs
// a page fault every 4 KiB.
class ReceivePool : public std::enable_shared_from_this<ReceivePool> {
 public:
  // Buffers of more than half of `common_bytes` are made that size and kept, `max_kept` at most.
  ReceivePool(size_t common_bytes, size_t max_kept)
      : common_bytes_(common_bytes), max_kept_(max_kept) {}

  struct Buffer {
    std::shared_ptr<std::byte> owner;  // the share that keeps it
    std::span<std::byte> bytes;
  };
  // When the last share is dropped, `cost_bytes` go back to `window` (which may be null).
  [[nodiscard]] Buffer Allocate(size_t size_bytes, size_t cost_bytes,
                                std::shared_ptr<ReceiveWindow> window);

  [[nodiscard]] size_t live_buffers() const { return live_.load(); }

 private:
  void Free(std::byte* memory, bool common);

  const size_t common_bytes_;
  const size_t max_kept_;
  std::atomic<size_t> live_{0};
  Mutex mutex_;
  std::vector<std::unique_ptr<std::byte[]>> kept_ KVIK_GUARDED_BY(mutex_);
};

}  // namespace kvik::transfer
