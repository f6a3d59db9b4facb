// SPDX-License-Identifier: Apache-2.0
//
// The part of KvCache for blocks whose bytes others write or read: what is loaded into a sequence,
// and what is held so that it can be sent.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/kv_cache.h"

namespace kvik::kv {

std::vector<BlockRange> KvCache::MissingBlocks(const Sequence& sequence) const {
  KVIK_CHECK(sequence.admitted_);
  const int32_t size = options_.block_size_tokens;
  std::vector<BlockRange> missing;
  const auto end = static_cast<int32_t>(sequence.sources_.size());
  for (int32_t block = (sequence.next_pos_ + size - 1) / size; block < end; ++block) {
    if (!sequence.IsCompute(block)) {
      continue;
    }
    if (missing.empty() || missing.back().end_block() != block) {
      missing.push_back(BlockRange{block, 0});
    }
    ++missing.back().num_blocks;
  }
  return missing;
}

std::vector<BlockId> KvCache::BeginLoad(Sequence& sequence, const BlockRange& range) {
  KVIK_CHECK(sequence.admitted_ && range.num_blocks >= 1 && range.first_block >= 0 &&
             static_cast<size_t>(range.end_block()) <= sequence.sources_.size());
  int32_t missing = 0;
  for (int32_t i = range.first_block; i < range.end_block(); ++i) {
    KVIK_CHECK(sequence.IsCompute(i) && i * options_.block_size_tokens >= sequence.next_pos_,
               "block %d has KV, or is getting it", i);
    missing += sequence.table_[static_cast<size_t>(i)] == kNoBlock ? 1 : 0;
  }
  KVIK_CHECK(missing <= sequence.reserved_blocks_);
  MakeRoom(missing);
  sequence.reserved_blocks_ -= missing;
  reserved_blocks_ -= missing;
  std::vector<BlockId> blocks;
  const auto keys = sequence.chain_.keys();
  for (int32_t i = range.first_block; i < range.end_block(); ++i) {
    const auto at = static_cast<size_t>(i);
    BlockId& block = sequence.table_[at];
    if (block == kNoBlock) {  // else a load of it failed before
      block = pool_.AllocateFilling().value();
    }
    sequence.sources_[at] = Sequence::Source::kLoading;
    ++sequence.num_loading_;
    const uint64_t parent = i == 0 ? 0 : keys[at - 1].Digest();
    KVIK_CHECK(
        loading_.emplace(block, Loading{&sequence, i, keys[at], parent, OriginOf(sequence, i)})
            .second);
    blocks.push_back(block);
  }
  return blocks;
}

LoadOutcome KvCache::EndLoad(BlockId block, const std::optional<BlockQuality>& quality) {
  const auto it = loading_.find(block);
  KVIK_CHECK(it != loading_.end(), "block %d is not being loaded", block);
  const Loading loading = it->second;
  loading_.erase(it);
  Sequence* const sequence = loading.sequence;
  if (sequence != nullptr && (!quality || !sequence->min_quality_.Accepts(*quality))) {
    sequence->EndLoad(loading.index, /*ready=*/false);
    return quality ? LoadOutcome::kRefused : LoadOutcome::kCompute;
  }
  if (!quality) {
    Free(block);
    return LoadOutcome::kDropped;
  }
  const int32_t first_pos = loading.index * options_.block_size_tokens;
  pool_.Seal(block);
  const bool published = Publish(BlockKey{loading.content, numerics_}, block, *quality, first_pos,
                                 loading.parent, loading.origin);
  if (sequence == nullptr) {
    pool_.Unref(block);
    if (!published) {
      Free(block);
      return LoadOutcome::kDropped;
    }
    policy_->Release(std::span(&block, 1), Access{now_us_, {}});
    return LoadOutcome::kCached;
  }
  LoadOutcome outcome = LoadOutcome::kReady;
  if (!published) {
    // Nobody has read the loaded copy yet, so the resident one can take its place.
    const BlockId resident = index_.Find(loading.content, sequence->min_quality_);
    if (resident != kNoBlock) {
      const Access access{now_us_, sequence->facts_};
      policy_->Hit(std::span(&resident, 1), access);
      if (pool_.state(resident) == BlockState::kCached) {
        policy_->Touch(std::span(&resident, 1), access);
      }
      pool_.Ref(resident);
      sequence->table_[static_cast<size_t>(loading.index)] = resident;
      pool_.Unref(block);
      Free(block);
      outcome = LoadOutcome::kDuplicate;
    } else {
      sequence->unindexed_.emplace_back(loading.index, *quality);
    }
  }
  sequence->EndLoad(loading.index, /*ready=*/true);
  return outcome;
}

// Of a block that a sequence reads but did not compute.
BlockQuality KvCache::ReadyQuality(const Sequence& sequence, int32_t block_index) const {
  const auto it = std::find_if(sequence.unindexed_.begin(), sequence.unindexed_.end(),
                               [&](const auto& entry) { return entry.first == block_index; });
  return it != sequence.unindexed_.end()
             ? it->second
             : index_.quality(sequence.table_[static_cast<size_t>(block_index)]);
}

// The sequence of a block lets go of it; false: nobody else writes to it.
bool KvCache::Abandon(BlockId block) {
  const auto it = loading_.find(block);
  if (it == loading_.end()) {
    return false;
  }
  it->second.sequence = nullptr;
  return true;
}

void KvCache::Hold(BlockId block) {
  KVIK_CHECK(index_.Contains(block), "block %d is not in the index", block);
  if (pool_.state(block) == BlockState::kCached) {
    KVIK_CHECK(AvailableBlocks() > 0, "block %d is promised to running requests", block);
    policy_->Touch(std::span(&block, 1), Access{now_us_, {}});
  }
  pool_.Ref(block);
  ++held_[block].holds;
}

void KvCache::Unhold(BlockId block) {
  const auto it = held_.find(block);
  KVIK_CHECK(it != held_.end(), "block %d is not held", block);
  RequestFacts facts;
  if (--it->second.holds == 0) {
    facts = std::move(it->second.facts);
    held_.erase(it);
  }
  if (pool_.Unref(block) && KeepUnreferenced(block)) {
    policy_->Release(std::span(&block, 1), Access{now_us_, facts});
  }
}

std::vector<BlockId> KvCache::BlocksInUseElsewhere() const {
  std::vector<BlockId> blocks;
  blocks.reserve(loading_.size() + held_.size());
  for (const auto& [block, loading] : loading_) {
    blocks.push_back(block);
  }
  for (const auto& [block, held] : held_) {
    blocks.push_back(block);
  }
  return blocks;
}

}  // namespace kvik::kv
