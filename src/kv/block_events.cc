// SPDX-License-Identifier: Apache-2.0
#include "kv/block_events.h"

#include <utility>

namespace kvik::kv {

void BlockEventRecorder::Stored(const BlockHash& block, const BlockHash* parent,
                                std::span<const TokenId> tokens, const ExtraKeys& extra) {
  // The hash of the block before implies its prefix, with salt and adapter.
  const bool goes_on =
      parent != nullptr && !events_.empty() && events_.back().kind == BlockEventKind::kStored &&
      events_.back().blocks.back() == *parent && events_.back().tokens.empty() == tokens.empty();
  if (!goes_on) {
    BlockEvent event;
    if (parent != nullptr) {
      event.parent = *parent;
    }
    event.extra = extra;
    events_.push_back(std::move(event));
  }
  events_.back().blocks.push_back(block);
  events_.back().tokens.insert(events_.back().tokens.end(), tokens.begin(), tokens.end());
}

void BlockEventRecorder::Removed(const BlockHash& block) {
  if (events_.empty() || events_.back().kind != BlockEventKind::kRemoved) {
    events_.emplace_back();
    events_.back().kind = BlockEventKind::kRemoved;
  }
  events_.back().blocks.push_back(block);
}

void BlockEventRecorder::Cleared() {
  events_.clear();
  events_.emplace_back();
  events_.back().kind = BlockEventKind::kCleared;
}

std::vector<BlockEvent> BlockEventRecorder::Take() { return std::exchange(events_, {}); }

}  // namespace kvik::kv
