// SPDX-License-Identifier: Apache-2.0
//
// Open addressing with linear probing over 8-byte slots; the keys lie with the blocks, where Erase
// needs them anyway, so a search that finds reads one line of each. Slots are never deleted lazily:
// RemoveSlot closes the hole, so a search ends at the first free slot however long the cache runs.
#include "kv/prefix_index.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"
#include "base/planted_defect.h"

namespace kvik::kv {
namespace {

constexpr size_t kLeastSlots = 16;

}  // namespace

std::vector<ResidentRun> FindRuns(std::span<const BlockId> blocks) {
  std::vector<ResidentRun> runs;
  bool in_run = false;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i] == kNoBlock) {
      in_run = false;
      continue;
    }
    if (!in_run) {
      runs.push_back(ResidentRun{static_cast<int32_t>(i), 0});
      in_run = true;
    }
    ++runs.back().num_blocks;
  }
  return runs;
}

PrefixIndex::PrefixIndex(NumericsTag numerics) : numerics_(numerics), slots_(kLeastSlots) {}

void PrefixIndex::Reserve(int32_t num_blocks) {
  const auto blocks = static_cast<size_t>(std::max(num_blocks, 0));
  if (records_.size() < blocks) {
    records_.resize(blocks);
  }
  if (slots_.size() < 2 * blocks) {
    Grow(std::bit_ceil(2 * blocks));
  }
}

void PrefixIndex::Grow(size_t num_slots) {
  const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(num_slots));
  const size_t mask = num_slots - 1;
  for (const Slot& slot : old) {
    if (slot.block == kNoBlock) {
      continue;
    }
    size_t at = slot.tag & mask;
    while (slots_[at].block != kNoBlock) {
      at = (at + 1) & mask;
    }
    slots_[at] = slot;
  }
}

size_t PrefixIndex::FindSlot(const ContentKey& key) const {
  const uint32_t tag = TagOf(key);
  const size_t mask = slots_.size() - 1;
  size_t at = tag & mask;
  while (slots_[at].block != kNoBlock) {
    // A stale slot's block may hold another content by now: the defect is to believe the slot.
    if (slots_[at].tag == tag &&
        (At(slots_[at].block).content == key || DefectPlanted(Defect::kStaleSlot))) {
      return at;
    }
    at = (at + 1) & mask;
  }
  return at;
}

// Closes the hole: every entry behind it that a search from its home could no longer reach moves
// up.
void PrefixIndex::RemoveSlot(size_t slot) {
  const size_t mask = slots_.size() - 1;
  size_t hole = slot;
  for (size_t at = (slot + 1) & mask; slots_[at].block != kNoBlock; at = (at + 1) & mask) {
    const size_t home = slots_[at].tag & mask;
    if (((at - home) & mask) >= ((at - hole) & mask)) {
      slots_[hole] = slots_[at];
      hole = at;
    }
  }
  slots_[hole] = Slot{};
  --used_slots_;
}

PrefixIndex::PublishResult PrefixIndex::Publish(const BlockKey& key, BlockId block,
                                                BlockQuality quality) {
  KVIK_CHECK(block >= 0 && !Contains(block), "block %d is in the index already", block);
  const bool exact = quality.fidelity == Fidelity::kExact && key.numerics == numerics_;
  size_t slot = FindSlot(key.content);
  const BlockId first = slots_[slot].block;
  if (first != kNoBlock && (!exact || At(first).state != State::kLossy)) {
    return PublishResult{PublishOutcome::kDuplicate, std::nullopt};
  }
  if (first == kNoBlock && 2 * (used_slots_ + 1) > slots_.size()) {
    Grow(2 * slots_.size());
    slot = FindSlot(key.content);
  }
  if (static_cast<size_t>(block) >= records_.size()) {
    records_.resize(std::max(static_cast<size_t>(block) + 1, 2 * records_.size()));
  }
  At(block) = Record{
      key.content,       first, exact ? State::kExact : State::kLossy, quality.q, quality.workload,
      quality.workload_q};
  used_slots_ += first == kNoBlock ? 1 : 0;
  slots_[slot] = Slot{TagOf(key.content), block};
  ++size_;
  PublishResult result;
  if (first != kNoBlock) {
    At(first).twin = block;
    result.superseded = first;
  }
  return result;
}

BlockId PrefixIndex::Find(const ContentKey& key, const MinQuality& min) const {
  const BlockId block = slots_[FindSlot(key)].block;
  if (block == kNoBlock || At(block).state != State::kLossy) {
    return block;
  }
  return min.Accepts(LossyQuality(At(block))) ? block : kNoBlock;
}

LookupResult PrefixIndex::Lookup(std::span<const ContentKey> keys, const MinQuality& min) const {
  LookupResult result;
  result.blocks.reserve(keys.size());
  for (const ContentKey& key : keys) {
    result.blocks.push_back(Find(key, min));
    result.num_hits += result.blocks.back() != kNoBlock ? 1 : 0;
  }
  result.runs = FindRuns(result.blocks);
  return result;
}

bool PrefixIndex::IsSuperseded(BlockId block) const {
  return Contains(block) && At(block).state == State::kLossy && At(block).twin != kNoBlock;
}

BlockQuality PrefixIndex::quality(BlockId block) const {
  KVIK_CHECK(Contains(block), "block %d is not in the index", block);
  const Record& record = At(block);
  return record.state == State::kLossy ? LossyQuality(record) : BlockQuality{};
}

const ContentKey& PrefixIndex::content(BlockId block) const {
  KVIK_CHECK(Contains(block), "block %d is not in the index", block);
  return At(block).content;
}

void PrefixIndex::Erase(BlockId block) {
  KVIK_CHECK(Contains(block), "block %d is not in the index", block);
  Record& record = At(block);
  record.state = State::kAbsent;
  --size_;
  if (DefectPlanted(Defect::kStaleSlot)) {
    return;  // the entry goes on naming a slot that will hold something else
  }
  const size_t slot = FindSlot(record.content);
  if (record.twin != kNoBlock) {
    At(record.twin).twin = kNoBlock;
    slots_[slot].block = record.twin;
  } else {
    RemoveSlot(slot);
  }
}

}  // namespace kvik::kv
