// SPDX-License-Identifier: Apache-2.0
// connector/object_head.h: what stands in front of the frames of every object, stored or streamed:
// which blocks it is of. A reader compares it with what it asked for before it looks at a value;
// a pool learns from it what it keeps. docs/wire-format.md has the table.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "kv/object.h"

namespace kvik::connector {

inline constexpr size_t kMaxHeadBlocks = 4096;

struct ObjectHead {
  kv::ObjectKey key;
  kv::BlockHash parent;               // the block before the first one; root: there is none
  std::vector<kv::BlockHash> blocks;  // all of them, in order: 1 to kMaxHeadBlocks
  // Of the KV that was encoded: what it depended on, not what the encoding does to it.
  kv::BlockQuality source;

  // kCorrupt unless this is the object `key` of exactly these blocks.
  [[nodiscard]] Result<void> CheckIs(const kv::ObjectKey& asked,
                                     std::span<const kv::BlockHash> asked_blocks) const;
};

[[nodiscard]] size_t HeadBytes(size_t num_blocks);
// REQUIRES: 1 to kMaxHeadBlocks blocks, the last one is the key's, q is within [0, 1].
void AppendHead(const ObjectHead& head, std::vector<std::byte>& out);

struct ReadHead {
  ObjectHead head;
  size_t size_bytes = 0;  // the frame stream follows
};
// Of an object's first bytes; nullopt: more are needed. kCorrupt, kUnsupported: not a head, or
// damaged.
[[nodiscard]] Result<std::optional<ReadHead>> ReadObjectHead(std::span<const std::byte> bytes);

}  // namespace kvik::connector
