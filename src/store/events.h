// SPDX-License-Identifier: Apache-2.0
// store/events.h: who hears which blocks the tiers of a store hold.
//
// Events (kv/block_events.h) are per tier and per block: a block is stored when the first object
// that covers it comes and removed when the last one has gone, however many encodings there were in
// between. Their tokens are not known here; the parent of a first block is BlockHasher::root().
#pragma once

#include "kv/block_events.h"
#include "store/object.h"

namespace kvik::store {

// Thread-safe. Called under the locks of a tier: must be quick and must not call back.
class EventSink {
 public:
  virtual ~EventSink() = default;
  // Whether events are to tell of the blocks of such an object; always the same answer for it.
  [[nodiscard]] virtual bool Concerns(const ObjectMeta& meta) const = 0;
  // In the order in which things happened. `event.medium` is the tier: kMemory or kDisk.
  virtual void OnEvent(kv::BlockEvent event) = 0;
};

}  // namespace kvik::store
