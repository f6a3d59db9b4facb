// SPDX-License-Identifier: Apache-2.0
// store/covered_blocks.h: turns objects that come and go into events about blocks.
//
// A block is covered by every encoding of every chunk it is part of; only the first and the last
// of them are news. Thread-compatible: a tier owns it and calls it under its lock.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "store/events.h"
#include "store/object.h"

namespace kvik::store {

class CoveredBlocks {
 public:
  // Does nothing at all when `sink` is null.
  CoveredBlocks(kv::BlockMedium medium, std::shared_ptr<EventSink> sink);

  void Add(const ObjectMeta& meta);
  // REQUIRES: was added.
  void Remove(const ObjectMeta& meta);

 private:
  struct Block {
    kv::BlockKey key;
    TenantId tenant;
    friend bool operator==(const Block&, const Block&) = default;
  };
  struct BlockHashOf {
    size_t operator()(const Block& block) const;
  };
  const kv::BlockMedium medium_;
  const std::shared_ptr<EventSink> sink_;
  std::unordered_map<Block, int32_t, BlockHashOf> counts_;
};

}  // namespace kvik::store
