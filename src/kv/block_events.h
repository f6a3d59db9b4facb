// SPDX-License-Identifier: Apache-2.0
// kv/block_events.h: which blocks a cache or a store has come to hold and holds no more, for those
// who have to know from afar: routers.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/types.h"
#include "kv/block_hasher.h"
#include "kv/block_key.h"

namespace kvik::kv {

enum class BlockEventKind : uint8_t { kStored, kRemoved, kCleared };

// Where blocks are held.
enum class BlockMedium : uint8_t {
  kCache,   // the engine's own cache: usable at once
  kMemory,  // encoded, in memory
  kDisk,    // encoded, on disk
};

struct BlockEvent {
  BlockEventKind kind = BlockEventKind::kStored;
  BlockMedium medium = BlockMedium::kCache;
  std::vector<BlockHash> blocks;  // consecutive ones of a prefix when stored; none when cleared
  // Of stored blocks:
  std::optional<BlockHash> parent;  // of the first block; none: it begins at position 0
  std::vector<TokenId> tokens;      // of all of them, or empty: not known
  ExtraKeys extra;                  // of the prefix they belong to
};

// Gathers what happens to single blocks into events: runs of a prefix become one.
class BlockEventRecorder {
 public:
  // `tokens` of this block; `parent` null: it is the first of its prefix.
  void Stored(const BlockHash& block, const BlockHash* parent, std::span<const TokenId> tokens,
              const ExtraKeys& extra);
  void Removed(const BlockHash& block);
  // Nothing is left; what was recorded before is of no interest any more.
  void Cleared();

  // What was recorded since the last call, in order.
  [[nodiscard]] std::vector<BlockEvent> Take();

 private:
  std::vector<BlockEvent> events_;
};

}  // namespace kvik::kv
