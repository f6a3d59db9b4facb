// SPDX-License-Identifier: Apache-2.0
// kv/prefix_index.h: from content to the resident block that holds it.
//
// An entry holds at most one exact and one lossy block of a content key. Lookup does not stop at
// the first miss: a chained hash identifies the whole prefix, so a block behind an eviction gap is
// as valid as one before it. The index holds no references; its owner (KvCache) pins and frees.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/types.h"
#include "kv/block_key.h"

namespace kvik::kv {

// Blocks [first_block, first_block + num_blocks) of a sequence are resident.
struct ResidentRun {
  int32_t first_block = 0;
  int32_t num_blocks = 0;
  friend bool operator==(const ResidentRun&, const ResidentRun&) = default;
};

struct LookupResult {
  std::vector<BlockId> blocks;    // [keys]; kNoBlock where nothing acceptable is resident
  std::vector<ResidentRun> runs;  // the maximal runs, ascending
  int32_t num_hits = 0;           // blocks in all runs
};

// The maximal runs of entries that are not kNoBlock.
std::vector<ResidentRun> FindRuns(std::span<const BlockId> blocks);

class PrefixIndex {
 public:
  // `numerics`: the tag of this engine. Blocks with another tag are lossy here.
  explicit PrefixIndex(NumericsTag numerics) : numerics_(numerics) {}

  enum class PublishOutcome {
    kPublished,  // the block is in the index now
    kDuplicate,  // an equal or better block is there; this one is not in the index
  };
  struct PublishResult {
    PublishOutcome outcome = PublishOutcome::kPublished;
    // A lossy block that the new one makes useless. It is still in the index: the owner calls
    // Erase when nobody holds it.
    std::optional<BlockId> superseded;
  };
  // Offers a sealed block. `quality` is taken as kLossy if `key.numerics` is not the index's tag.
  // Of two lossy blocks the first stays. REQUIRES: `block` is not in the index.
  PublishResult Publish(const BlockKey& key, BlockId block, BlockQuality quality);

  // One entry per key: the exact block, else a lossy one that `min` accepts, else kNoBlock.
  // O(keys), no side effects.
  [[nodiscard]] LookupResult Lookup(std::span<const ContentKey> keys, const MinQuality& min) const;
  [[nodiscard]] BlockId Find(const ContentKey& key, const MinQuality& min) const;

  [[nodiscard]] bool Contains(BlockId block) const { return by_block_.contains(block); }
  // True when `block` is lossy and the exact block of the same content is in the index.
  [[nodiscard]] bool IsSuperseded(BlockId block) const;
  // REQUIRES: Contains(block).
  [[nodiscard]] BlockQuality quality(BlockId block) const;
  void Erase(BlockId block);

  [[nodiscard]] size_t size() const { return by_block_.size(); }  // blocks, not entries

 private:
  struct Entry {
    BlockId exact = kNoBlock;
    BlockId lossy = kNoBlock;
    float lossy_q = 0;
  };
  NumericsTag numerics_;
  std::unordered_map<ContentKey, Entry, ContentKeyHash> entries_;
  std::unordered_map<BlockId, ContentKey> by_block_;
};

}  // namespace kvik::kv
