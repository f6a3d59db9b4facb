// SPDX-License-Identifier: Apache-2.0
// store/block_recycler.h: large blocks of memory that were let go of, for the next to come.
//
// The allocator gives blocks of this size back to the system, and the system hands them out page by
// page at a fraction of the speed of a copy. Objects come and go at the same sizes all the time.
#pragma once

#include <cstddef>
#include <list>
#include <map>

#include "base/mutex.h"

namespace kvik::store {

// Thread-safe.
class BlockRecycler {
 public:
  // Keeps at most `limit_bytes`: those that were let go of last.
  explicit BlockRecycler(size_t limit_bytes) : limit_bytes_(limit_bytes) {}
  ~BlockRecycler();
  BlockRecycler(const BlockRecycler&) = delete;
  BlockRecycler& operator=(const BlockRecycler&) = delete;

  // The process's own, never destroyed.
  static BlockRecycler& OfProcess();

  struct Block {
    std::byte* data = nullptr;  // 64-byte aligned, not initialised; null: there is no memory
    size_t size_bytes = 0;      // at least what was asked for, at most an eighth more
  };
  [[nodiscard]] Block Take(size_t size_bytes) KVIK_EXCLUDES(mutex_);
  void Give(Block block) KVIK_EXCLUDES(mutex_);
  [[nodiscard]] size_t kept_bytes() const KVIK_EXCLUDES(mutex_);

 private:
  const size_t limit_bytes_;
  mutable Mutex mutex_;
  std::list<Block> kept_ KVIK_GUARDED_BY(mutex_);  // oldest first
  std::multimap<size_t, std::list<Block>::iterator> by_size_ KVIK_GUARDED_BY(mutex_);
  size_t kept_bytes_ KVIK_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvik::store
