// SPDX-License-Identifier: Apache-2.0
// store/events.h: what a router must hear to know which node holds which blocks.
//
// Events are per tier and per block: a block is stored when the first object that covers it comes
// and removed when the last one has gone, however many encodings there were in between.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/types.h"
#include "store/object.h"

namespace kvik::store {

enum class BlockEventKind : uint8_t { kStored, kRemoved, kCleared };

struct BlockEvent {
  uint64_t sequence = 0;  // 1, 2, ... over all tiers of a store; no number is left out
  BlockEventKind kind = BlockEventKind::kStored;
  TierKind medium = TierKind::kMemory;
  // Of kStored and kRemoved; kCleared is everything of the medium.
  TenantId tenant;
  kv::CacheDomain domain;
  kv::NumericsTag numerics;
  std::vector<kv::BlockHash> blocks;  // consecutive when stored
  kv::BlockHash parent;               // of the first one, when stored
  std::vector<TokenId> tokens;        // of the blocks, when stored and known; else empty
};

// Takes events in the order in which things happened. Called under the locks of a tier: must be
// quick and must not call back. Thread-safe.
class EventSink {
 public:
  virtual ~EventSink() = default;
  // Fills in the sequence number.
  virtual void OnEvent(BlockEvent event) = 0;
};

// The last `capacity` events, for any number of readers. Thread-safe.
class EventLog final : public EventSink {
 public:
  explicit EventLog(size_t capacity);

  void OnEvent(BlockEvent event) override;
  struct Batch {
    std::vector<BlockEvent> events;  // ascending
    // Events after `after` and before the first of these were dropped: the reader knows less than
    // it thinks and has to start over.
    bool lost = false;
  };
  // Events with a sequence above `after`, at most `limit`. Never waits.
  [[nodiscard]] Batch Since(uint64_t after, size_t limit) const KVIK_EXCLUDES(mutex_);

 private:
  const size_t capacity_;
  mutable Mutex mutex_;
  std::deque<BlockEvent> events_ KVIK_GUARDED_BY(mutex_);
  uint64_t last_ KVIK_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvik::store
