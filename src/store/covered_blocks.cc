// SPDX-License-Identifier: Apache-2.0
#include "store/covered_blocks.h"

#include <utility>
#include <vector>

#include "base/check.h"

namespace kvik::store {
namespace {

BlockEvent EventOf(BlockEventKind kind, TierKind medium, const ObjectMeta& meta) {
  BlockEvent event;
  event.kind = kind;
  event.medium = medium;
  event.tenant = meta.key.tenant;
  event.domain = meta.key.block.content.domain;
  event.numerics = meta.key.block.numerics;
  return event;
}

}  // namespace

size_t CoveredBlocks::BlockHashOf::operator()(const Block& block) const {
  return block.key.content.Digest() ^ block.key.numerics.value ^ block.tenant.value;
}

CoveredBlocks::CoveredBlocks(TierKind medium, std::shared_ptr<EventSink> sink)
    : medium_(medium), sink_(std::move(sink)) {}

void CoveredBlocks::Add(const ObjectMeta& meta, std::span<const TokenId> tokens) {
  if (sink_ == nullptr) {
    return;
  }
  const size_t block_tokens =
      tokens.size() % meta.blocks.size() == 0 ? tokens.size() / meta.blocks.size() : 0;
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
      event = EventOf(BlockEventKind::kStored, medium_, meta);
      event.parent = i == 0 ? meta.parent : meta.blocks[i - 1];
    }
    event.blocks.push_back(meta.blocks[i]);
    const auto of_block = tokens.subspan(i * block_tokens, block_tokens);
    event.tokens.insert(event.tokens.end(), of_block.begin(), of_block.end());
  }
  send();
}

void CoveredBlocks::Remove(const ObjectMeta& meta) {
  if (sink_ == nullptr) {
    return;
  }
  Block block{meta.key.block, meta.key.tenant};
  BlockEvent event = EventOf(BlockEventKind::kRemoved, medium_, meta);
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

void CoveredBlocks::Clear() {
  if (sink_ == nullptr) {
    return;
  }
  counts_.clear();
  BlockEvent event;
  event.kind = BlockEventKind::kCleared;
  event.medium = medium_;
  sink_->OnEvent(std::move(event));
}

}  // namespace kvik::store
