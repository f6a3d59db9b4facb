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
  explicit PrefixIndex(NumericsTag numerics);

  // Makes room for blocks [0, num_blocks) now, so that no later Publish has to. Others grow it.
  void Reserve(int32_t num_blocks);

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

  [[nodiscard]] bool Contains(BlockId block) const {
    return block >= 0 && static_cast<size_t>(block) < records_.size() &&
           records_[static_cast<size_t>(block)].state != State::kAbsent;
  }
  // True when `block` is lossy and the exact block of the same content is in the index.
  [[nodiscard]] bool IsSuperseded(BlockId block) const;
  // REQUIRES: Contains(block).
  [[nodiscard]] BlockQuality quality(BlockId block) const;
  [[nodiscard]] const ContentKey& content(BlockId block) const;
  void Erase(BlockId block);

  [[nodiscard]] size_t size() const { return size_; }  // blocks, not entries

 private:
  enum class State : uint8_t { kAbsent, kExact, kLossy };
  // A block of an entry knows the entry's key and the entry's other block.
  struct Record {
    ContentKey content;
    BlockId twin = kNoBlock;
    State state = State::kAbsent;
    float lossy_q = 0;
    WorkloadTag workload;  // BlockQuality
    float workload_q = 0;
  };
  // An entry is where its first block is: the exact one if it has one.
  struct Slot {
    uint32_t tag = 0;  // low bits of the digest; where they point is the slot's home
    BlockId block = kNoBlock;
  };
  static uint32_t TagOf(const ContentKey& key) { return static_cast<uint32_t>(key.Digest()); }
  static BlockQuality LossyQuality(const Record& record) {
    return {Fidelity::kLossy, record.lossy_q, record.workload, record.workload_q};
  }
  Record& At(BlockId block) { return records_[static_cast<size_t>(block)]; }
  [[nodiscard]] const Record& At(BlockId block) const {
    return records_[static_cast<size_t>(block)];
  }
  // The slot of the key's entry, or the free slot where it would be.
  [[nodiscard]] size_t FindSlot(const ContentKey& key) const;
  void RemoveSlot(size_t slot);
  void Grow(size_t num_slots);

  NumericsTag numerics_;
  std::vector<Record> records_;  // by block
  std::vector<Slot> slots_;      // a power of two, at most half of them used
  size_t used_slots_ = 0;
  size_t size_ = 0;
};

}  // namespace kvik::kv
