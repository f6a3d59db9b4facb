// SPDX-License-Identifier: Apache-2.0
// connector/event_queue.h: what the connector's threads have to tell the engine, and the blocks
// that the engine holds for them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "base/mutex.h"
#include "kv/connector.h"

namespace kvik::connector {

// Thread-safe.
class EventQueue {
 public:
  void Open(std::function<void()> wake) KVIK_EXCLUDES(mutex_);
  // Drops what is queued and what comes later, and forgets `wake`: once this returns nobody is
  // calling it.
  void Close() KVIK_EXCLUDES(mutex_);

  void Push(kv::ConnectorEvent event) KVIK_EXCLUDES(mutex_);
  // Appends to the last event if that is a Released, too.
  void PushReleased(BlockId block) KVIK_EXCLUDES(mutex_);
  // Drops what is queued for a ticket but its confirmations: Answered and Failed.
  void Forget(kv::TicketId ticket) KVIK_EXCLUDES(mutex_);
  [[nodiscard]] std::vector<kv::ConnectorEvent> Take() KVIK_EXCLUDES(mutex_);
  // Blocks that PushReleased was called for, since the start.
  [[nodiscard]] int64_t released() const KVIK_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  int64_t released_ KVIK_GUARDED_BY(mutex_) = 0;
  bool open_ KVIK_GUARDED_BY(mutex_) = false;
  std::function<void()> wake_ KVIK_GUARDED_BY(mutex_);
  std::vector<kv::ConnectorEvent> events_ KVIK_GUARDED_BY(mutex_);
};

// A sealed block with a reference that the engine holds for us. Shared by whoever reads it; the
// last one to let go releases it.
class HeldBlock {
 public:
  HeldBlock(const kv::SealedBlock& sealed, std::shared_ptr<EventQueue> events)
      : sealed_(sealed), events_(std::move(events)) {}
  ~HeldBlock() { events_->PushReleased(sealed_.block); }
  HeldBlock(const HeldBlock&) = delete;
  HeldBlock& operator=(const HeldBlock&) = delete;

  [[nodiscard]] const kv::SealedBlock& sealed() const { return sealed_; }

 private:
  const kv::SealedBlock sealed_;
  const std::shared_ptr<EventQueue> events_;
};
using HeldBlockPtr = std::shared_ptr<const HeldBlock>;

}  // namespace kvik::connector
