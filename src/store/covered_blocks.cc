// SPDX-License-Identifier: Apache-2.0
#include "store/covered_blocks.h"

#include <utility>

#include "base/check.h"

namespace kvik::store {

using kv::BlockEvent;
using kv::BlockEventKind;

size_t CoveredBlocks::BlockHashOf::operator()(const Block& block) const {
  return block.key.content.Digest() ^ block.key.numerics.value ^ block.tenant.value;
}

CoveredBlocks::CoveredBlocks(kv::BlockMedium medium, std::shared_ptr<EventSink> sink)
    : medium_(medium), sink_(std::move(sink)) {}

void CoveredBlocks::Add(const ObjectMeta& meta) {
  if (sink_ == nullptr || !sink_->Concerns(meta)) {
    return;
  }
  Block block{meta.key.block, meta.key.tenant};
  // One event per run of blocks that are news.
  BlockEvent event;
  const auto send = [&] {
    if (!event.blocks.empty()) {
      sink_->OnEvent(std::exchange(event, {}));
    }
  };
  for (size_t i = 0; i < meta.blocks.size(); ++i) {
    block.key.content.hash = meta.blocks[i];
    if (++counts_[block] > 1) {
      send();
      continue;
    }
    if (event.blocks.empty()) {
      event.medium = medium_;
      event.parent = i == 0 ? meta.parent : meta.blocks[i - 1];
    }
    event.blocks.push_back(meta.blocks[i]);
  }
  send();
}

void CoveredBlocks::Remove(const ObjectMeta& meta) {
  if (sink_ == nullptr || !sink_->Concerns(meta)) {
    return;
  }
  Block block{meta.key.block, meta.key.tenant};
  BlockEvent event;
  event.kind = BlockEventKind::kRemoved;
  event.medium = medium_;
  for (const kv::BlockHash& hash : meta.blocks) {
    block.key.content.hash = hash;
    const auto found = counts_.find(block);
    KVIK_CHECK(found != counts_.end());
    if (--found->second == 0) {
      counts_.erase(found);
      event.blocks.push_back(hash);
    }
  }
  if (!event.blocks.empty()) {
    sink_->OnEvent(std::move(event));
  }
}

}  // namespace kvik::store
