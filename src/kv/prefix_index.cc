// SPDX-License-Identifier: Apache-2.0
#include "kv/prefix_index.h"

#include "base/check.h"
#include "base/planted_defect.h"

namespace kvik::kv {

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

PrefixIndex::PublishResult PrefixIndex::Publish(const BlockKey& key, BlockId block,
                                                BlockQuality quality) {
  KVIK_CHECK(!by_block_.contains(block), "block %d is in the index already", block);
  const bool exact = quality.fidelity == Fidelity::kExact && key.numerics == numerics_;
  Entry& entry = entries_[key.content];
  if (entry.exact != kNoBlock || (!exact && entry.lossy != kNoBlock)) {
    return PublishResult{PublishOutcome::kDuplicate, std::nullopt};
  }
  by_block_.emplace(block, key.content);
  PublishResult result;
  if (exact) {
    entry.exact = block;
    if (entry.lossy != kNoBlock) {
      result.superseded = entry.lossy;
    }
  } else {
    entry.lossy = block;
    entry.lossy_q = quality.q;
  }
  return result;
}

BlockId PrefixIndex::Find(const ContentKey& key, const MinQuality& min) const {
  const auto it = entries_.find(key);
  if (it == entries_.end()) {
    return kNoBlock;
  }
  const Entry& entry = it->second;
  if (entry.exact != kNoBlock) {
    return entry.exact;
  }
  return min.Accepts(BlockQuality{Fidelity::kLossy, entry.lossy_q}) ? entry.lossy : kNoBlock;
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
  const auto it = by_block_.find(block);
  if (it == by_block_.end()) {
    return false;
  }
  const Entry& entry = entries_.at(it->second);
  return entry.lossy == block && entry.exact != kNoBlock;
}

BlockQuality PrefixIndex::quality(BlockId block) const {
  const auto it = by_block_.find(block);
  KVIK_CHECK(it != by_block_.end(), "block %d is not in the index", block);
  const Entry& entry = entries_.at(it->second);
  return entry.lossy == block ? BlockQuality{Fidelity::kLossy, entry.lossy_q} : BlockQuality{};
}

void PrefixIndex::Erase(BlockId block) {
  const auto it = by_block_.find(block);
  KVIK_CHECK(it != by_block_.end(), "block %d is not in the index", block);
  const ContentKey key = it->second;
  by_block_.erase(it);
  if (DefectPlanted(Defect::kStaleSlot)) {
    return;  // the entry goes on naming a slot that will hold something else
  }
  const auto entry = entries_.find(key);
  (entry->second.exact == block ? entry->second.exact : entry->second.lossy) = kNoBlock;
  if (entry->second.exact == kNoBlock && entry->second.lossy == kNoBlock) {
    entries_.erase(entry);
  }
}

}  // namespace kvik::kv
