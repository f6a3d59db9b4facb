// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_cache.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/planted_defect.h"

namespace kvik::kv {

namespace {

Result<void> CheckOptions(const CacheOptions& options) {
  if (options.num_blocks < 1) {
    return Err(ErrorCode::kInvalidInput, "num_blocks is %d: the cache needs at least one block",
               options.num_blocks);
  }
  const int32_t size = options.block_size_tokens;
  if (size < 1) {
    return Err(ErrorCode::kInvalidInput, "block_size_tokens is %d: at least 1", size);
  }
  if (options.num_blocks > std::numeric_limits<int32_t>::max() / size) {
    return Err(ErrorCode::kInvalidInput, "num_blocks is %d: at most %d blocks of %d tokens",
               options.num_blocks, std::numeric_limits<int32_t>::max() / size, size);
  }
  if (const auto& geometry = options.geometry;
      geometry && (geometry->block_size_tokens != size || size > kMaxMaskedSlots)) {
    return Err(ErrorCode::kInvalidInput,
               "block_size_tokens is %d, but the blocks have %d tokens (at most %d)", size,
               geometry->block_size_tokens, kMaxMaskedSlots);
  }
  if (!(options.residency_share >= 0 && options.residency_share <= 1)) {
    return Err(ErrorCode::kInvalidInput, "residency_share is %g: between 0 and 1",
               options.residency_share);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<KvCache>> KvCache::Create(const CacheOptions& options) {
  KVIK_TRY(CheckOptions(options));  // a policy allocates by num_blocks
  PolicyOptions policy_options = options.policy;
  policy_options.num_blocks = options.num_blocks;
  policy_options.block_size_tokens = options.block_size_tokens;
  policy_options.obey_clients = true;
  KVIK_ASSIGN(auto policy, MakeEvictionPolicy(policy_options));
  KVIK_TRY(policy->RestoreState(options.policy_state));
  return Create(options, std::move(policy));
}

Result<std::unique_ptr<KvCache>> KvCache::Create(const CacheOptions& options,
                                                 std::unique_ptr<EvictionPolicy> policy) {
  KVIK_TRY(CheckOptions(options));
  return std::unique_ptr<KvCache>(new KvCache(options, std::move(policy)));
}

KvCache::KvCache(const CacheOptions& options, std::unique_ptr<EvictionPolicy> policy)
    : options_(options),
      numerics_(NumericsTag::FromDescription(options.numerics)),
      hasher_(options.hash),
      pool_(options.num_blocks),
      index_(numerics_),
      policy_(std::move(policy)) {
  if (options.geometry) {
    masks_.emplace(*options.geometry, options.num_blocks);
  }
  index_.Reserve(options.num_blocks);
  if (options.residency_share > 0) {
    residency_.emplace(options.residency_share, options.num_blocks);
  }
}

void KvCache::AdvanceTime(int64_t now_us) {
  now_us_ = std::max(now_us_, now_us);
  policy_->Tick(now_us_);
}

AdmissionPlan KvCache::Plan(Sequence& sequence, int32_t need_tokens) const {
  KVIK_CHECK(!sequence.admitted_ && need_tokens >= sequence.num_tokens());
  AdmissionPlan plan;
  if (options_.prefix_caching) {
    sequence.chain_.Extend(hasher_, sequence.tokens_);
    const auto usable =
        static_cast<size_t>((sequence.num_tokens() - 1) / options_.block_size_tokens);
    plan.hits = index_.Lookup(sequence.chain_.keys().first(usable), sequence.min_quality_);
    if (DefectPlanted(Defect::kStaleSlot)) {
      KeepPinnable(plan.hits);
    }
    if (policy_->hits() == HitScope::kPrefix || options_.hits == HitScope::kPrefix) {
      KeepPrefix(plan.hits);
    }
  }
  plan.num_new_blocks = BlocksFor(need_tokens) - plan.hits.num_hits;
  return plan;
}

bool KvCache::IsAwaited(Sequence& sequence) const {
  return policy_->stats().pinned > 0 &&
         policy_->HoldsFor(Plan(sequence, sequence.num_tokens()).hits.blocks,
                           sequence.facts().session);
}

// A stale entry may name a slot that cannot be pinned; the defect to plant is the wrong content.
void KvCache::KeepPinnable(LookupResult& hits) const {
  hits.num_hits = 0;
  for (BlockId& block : hits.blocks) {
    if (block != kNoBlock && !index_.Contains(block)) {
      block = kNoBlock;
    }
    hits.num_hits += block != kNoBlock ? 1 : 0;
  }
  hits.runs = FindRuns(hits.blocks);
}

// Drops every run but the one from position 0.
void KvCache::KeepPrefix(LookupResult& hits) {
  const bool prefix = !hits.runs.empty() && hits.runs.front().first_block == 0;
  hits.num_hits = prefix ? hits.runs.front().num_blocks : 0;
  std::fill(hits.blocks.begin() + hits.num_hits, hits.blocks.end(), kNoBlock);
  hits.runs.resize(prefix ? 1 : 0);
}

int32_t KvCache::AvailableBlocks() const {
  return pool_.num_free() + pool_.num_cached() - reserved_blocks_;
}

int32_t KvCache::BlocksTaken(const AdmissionPlan& plan) const {
  int32_t taken = plan.num_new_blocks;
  for (const BlockId block : plan.hits.blocks) {
    taken += block != kNoBlock && pool_.state(block) == BlockState::kCached ? 1 : 0;
  }
  return taken;
}

AdmitOutcome KvCache::Admit(Sequence& sequence, const AdmissionPlan& plan) {
  KVIK_CHECK(!sequence.admitted_);
  const auto keys = sequence.chain_.keys();
  for (size_t i = 0; i < plan.hits.blocks.size(); ++i) {
    const BlockId block = plan.hits.blocks[i];
    if (block != kNoBlock && index_.Find(keys[i], sequence.min_quality_) != block) {
      return AdmitOutcome::kStale;
    }
  }
  if (BlocksTaken(plan) > AvailableBlocks()) {
    return AdmitOutcome::kNoRoom;
  }
  std::vector<BlockId> used;
  std::vector<BlockId> touched;
  std::vector<uint64_t> missed;
  for (size_t i = 0; i < plan.hits.blocks.size(); ++i) {
    const BlockId block = plan.hits.blocks[i];
    if (block == kNoBlock) {
      missed.push_back(keys[i].Digest());
      continue;
    }
    used.push_back(block);
    if (residency_) {
      residency_->Used(block, now_us_);
    }
    if (pool_.state(block) == BlockState::kCached) {
      touched.push_back(block);
    }
    pool_.Ref(block);
  }
  const Access access{now_us_, sequence.facts_};
  policy_->Hit(used, access);
  policy_->Touch(touched, access);
  policy_->Missed(missed, access);
  reserved_blocks_ += plan.num_new_blocks;

  sequence.admitted_ = true;
  sequence.table_ = plan.hits.blocks;
  sequence.table_.resize(static_cast<size_t>(plan.num_new_blocks + plan.hits.num_hits), kNoBlock);
  sequence.sources_.assign(plan.hits.blocks.size(), Sequence::Source::kCompute);
  for (size_t i = 0; i < plan.hits.blocks.size(); ++i) {
    if (plan.hits.blocks[i] != kNoBlock) {
      sequence.sources_[i] = Sequence::Source::kReady;
    }
  }
  sequence.hit_runs_ = plan.hits.runs;
  sequence.ready_ahead_ = plan.hits.num_hits;
  sequence.reserved_blocks_ = plan.num_new_blocks;
  sequence.next_pos_ = sequence.SkipReady(0);
  sequence.ready_ahead_ -= sequence.next_pos_ / options_.block_size_tokens;
  sequence.num_sealed_ = 0;
  sequence.quality_ = BlockQuality{};
  return AdmitOutcome::kAdmitted;
}

bool KvCache::Reserve(Sequence& sequence, int32_t need_tokens) {
  KVIK_CHECK(sequence.admitted_);
  const int32_t missing = BlocksFor(need_tokens) - static_cast<int32_t>(sequence.table_.size());
  if (missing <= 0) {
    return true;
  }
  if (missing > AvailableBlocks()) {
    return false;
  }
  sequence.table_.resize(sequence.table_.size() + static_cast<size_t>(missing), kNoBlock);
  sequence.reserved_blocks_ += missing;
  reserved_blocks_ += missing;
  return true;
}

void KvCache::Allocate(Sequence& sequence, std::span<const TokenRun> runs) {
  KVIK_CHECK(sequence.admitted_);
  std::vector<BlockId*> missing;
  for (const TokenRun& run : runs) {
    KVIK_CHECK(run.num_tokens >= 1 &&
                   BlocksFor(run.end_pos()) <= static_cast<int32_t>(sequence.table_.size()),
               "positions [%d, %d) were not reserved", run.first_pos, run.end_pos());
    for (int32_t block = run.first_pos / options_.block_size_tokens;
         block < BlocksFor(run.end_pos()); ++block) {
      KVIK_CHECK(sequence.IsCompute(block), "block %d is not to be written", block);
      BlockId& slot = sequence.table_[static_cast<size_t>(block)];
      if (slot == kNoBlock) {
        missing.push_back(&slot);
      }
    }
  }
  const auto count = static_cast<int32_t>(missing.size());
  KVIK_CHECK(count <= sequence.reserved_blocks_);
  MakeRoom(count);
  for (BlockId* slot : missing) {
    *slot = pool_.AllocateFilling().value();
  }
  sequence.reserved_blocks_ -= count;
  reserved_blocks_ -= count;
}

void KvCache::MakeRoom(int32_t blocks) {
  const int32_t missing = blocks - pool_.num_free();
  if (missing <= 0) {
    return;
  }
  for (const BlockId victim : policy_->SelectVictims(static_cast<size_t>(missing), now_us_)) {
    FreeEvicted(victim);
    ++evictions_;
  }
}

void KvCache::Commit(Sequence& sequence, std::span<const TokenRun> runs) {
  KVIK_CHECK(sequence.admitted_);
  sequence.Advance(runs);
  if (options_.prefix_caching) {
    sequence.chain_.Extend(hasher_, sequence.tokens_);
  }
  const int32_t full_blocks = sequence.next_pos_ / options_.block_size_tokens;
  for (; sequence.num_sealed_ < full_blocks; ++sequence.num_sealed_) {
    const int32_t block_index = sequence.num_sealed_;
    const BlockId block = sequence.table_[static_cast<size_t>(block_index)];
    if (sequence.IsReady(block_index)) {  // what follows was computed from it
      const BlockQuality quality = ReadyQuality(sequence, block_index);
      if (quality.fidelity == Fidelity::kLossy) {
        sequence.quality_ = WorseOf(sequence.quality_, quality, sequence.min_quality_.workload);
      }
      continue;
    }
    pool_.Seal(block);
    if (options_.prefix_caching) {
      const ContentKey& content = sequence.chain_.keys()[static_cast<size_t>(block_index)];
      const uint64_t parent =
          block_index == 0 ? 0
                           : sequence.chain_.keys()[static_cast<size_t>(block_index) - 1].Digest();
      Publish(BlockKey{content, numerics_}, block, sequence.quality_,
              block_index * options_.block_size_tokens, parent, OriginOf(sequence, block_index));
    }
  }
}

KvCache::Origin KvCache::OriginOf(const Sequence& sequence, int32_t block_index) const {
  Origin origin;
  if (!options_.announce) {
    return origin;
  }
  const auto at = static_cast<size_t>(block_index);
  if (at > 0) {
    origin.parent = sequence.chain_.keys()[at - 1].hash;
  }
  origin.extra = sequence.chain_.extra();
  const auto size = static_cast<size_t>(options_.block_size_tokens);
  if (sequence.tokens().size() >= (at + 1) * size) {  // a trace may have keys only
    const auto tokens = sequence.tokens().subspan(at * size, size);
    origin.tokens.assign(tokens.begin(), tokens.end());
  }
  return origin;
}

bool KvCache::Publish(const BlockKey& key, BlockId block, BlockQuality quality, int32_t first_pos,
                      uint64_t parent, const Origin& origin) {
  const bool was_announced = IsAnnounced(key.content);
  const auto result = index_.Publish(key, block, quality);
  if (result.outcome == PrefixIndex::PublishOutcome::kDuplicate) {
    ++duplicates_;
    return false;
  }
  ++published_;
  if (!was_announced && IsAnnounced(key.content)) {
    recorder_.Stored(key.content.hash, origin.parent ? &*origin.parent : nullptr, origin.tokens,
                     origin.extra);
  }
  const uint64_t content = key.content.Digest();
  policy_->Track(TrackedBlock{block, first_pos, content, parent});
  if (residency_) {
    residency_->Published(block, content, now_us_);
  }
  if (result.superseded && pool_.state(*result.superseded) == BlockState::kCached) {
    DropCached(*result.superseded);
  }
  return true;
}

void KvCache::Release(Sequence& sequence) {
  if (!sequence.admitted_) {
    return;
  }
  std::vector<BlockId> evictable;  // deepest first
  for (auto it = sequence.table_.rbegin(); it != sequence.table_.rend(); ++it) {
    const BlockId block = *it;
    if (block == kNoBlock) {
      continue;
    }
    if (pool_.state(block) == BlockState::kFilling) {
      if (sequence.num_loading_ > 0 && Abandon(block)) {
        continue;  // somebody writes to it still
      }
      Free(block);
    } else if (pool_.Unref(block)) {
      if (KeepUnreferenced(block)) {
        evictable.push_back(block);
      }
    } else if (const auto held = held_.find(block); held != held_.end()) {
      held->second.facts = sequence.facts_;
    }
  }
  policy_->Release(evictable, Access{now_us_, sequence.facts_, sequence.table_});
  reserved_blocks_ -= sequence.reserved_blocks_;

  sequence.admitted_ = false;
  sequence.table_.clear();
  sequence.sources_.clear();
  sequence.unindexed_.clear();
  sequence.hit_runs_.clear();
  sequence.next_pos_ = 0;
  sequence.ready_ahead_ = 0;
  sequence.num_loading_ = 0;
  sequence.num_sealed_ = 0;
  sequence.reserved_blocks_ = 0;
}

// Whether a block that nobody refers to any more stays, cached. If not, it is gone.
bool KvCache::KeepUnreferenced(BlockId block) {
  if (!index_.Contains(block)) {
    Free(block);  // a duplicate, or prefix caching is off
    return false;
  }
  if (index_.IsSuperseded(block)) {
    DropCached(block);
    return false;
  }
  return true;
}

std::optional<BlockId> KvCache::Import(const BlockKey& key, BlockQuality quality,
                                       int32_t first_pos) {
  if (AvailableBlocks() < 1) {
    return std::nullopt;
  }
  MakeRoom(1);
  const BlockId block = pool_.AllocateFilling().value();
  pool_.Seal(block);
  const bool published = Publish(key, block, quality, first_pos, /*parent=*/0, Origin{});
  pool_.Unref(block);
  if (!published) {
    Free(block);
    return std::nullopt;
  }
  policy_->Release(std::span(&block, 1), Access{now_us_, {}});
  return block;
}

void KvCache::DropCached(BlockId block) {
  KVIK_CHECK(pool_.state(block) == BlockState::kCached, "block %d is not cached", block);
  policy_->Forget(block);
  FreeEvicted(block);
}

void KvCache::FreeEvicted(BlockId block) {
  if (options_.announce) {
    const ContentKey content = index_.content(block);
    const bool was_announced = IsAnnounced(content);
    index_.Erase(block);
    if (was_announced && !IsAnnounced(content)) {
      recorder_.Removed(content.hash);
    }
  } else {
    index_.Erase(block);
  }
  Free(block);
  if (residency_) {
    residency_->Evicted(block, now_us_);
  }
}

void KvCache::Free(BlockId block) {
  pool_.Free(block);
  if (masks_) {
    masks_->Clear(block);
  }
}

std::vector<ResidencySample> KvCache::TakeResidencySamples() {
  return residency_ ? residency_->Take() : std::vector<ResidencySample>();
}

std::vector<BlockEvent> KvCache::TakeBlockEvents() { return recorder_.Take(); }

void KvCache::Evict(BlockId block) {
  DropCached(block);
  ++evictions_;
}

int32_t KvCache::EvictAtRandom(Rng& rng, double probability) {
  int32_t evicted = 0;
  for (BlockId block = 0; block < pool_.num_total(); ++block) {
    if (pool_.state(block) == BlockState::kCached && rng.Uniform() < probability) {
      Evict(block);
      ++evicted;
    }
  }
  return evicted;
}

int32_t KvCache::Clear() {
  const int32_t cached = pool_.num_cached();
  for (BlockId block = 0; block < pool_.num_total(); ++block) {
    if (pool_.state(block) == BlockState::kCached) {
      Evict(block);
    }
  }
  if (options_.announce && index_.size() == 0) {
    recorder_.Cleared();
  }
  return cached;
}

CacheStats KvCache::stats() const {
  CacheStats stats;
  stats.total_blocks = pool_.num_total();
  stats.free_blocks = pool_.num_free();
  stats.filling_blocks = pool_.num_filling();
  stats.referenced_blocks = pool_.num_referenced();
  stats.cached_blocks = pool_.num_cached();
  stats.reserved_blocks = reserved_blocks_;
  stats.loading_blocks = static_cast<int32_t>(loading_.size());
  stats.held_blocks = static_cast<int32_t>(held_.size());
  stats.published = published_;
  stats.duplicates = duplicates_;
  stats.evictions = evictions_;
  return stats;
}

void KvCache::CheckInvariant() const {
  pool_.CheckInvariant();
  const PolicyStats policy = policy_->stats();
  KVIK_CHECK(policy.evictable == pool_.num_cached());
  KVIK_CHECK(policy.tracked == static_cast<int64_t>(index_.size()));
  KVIK_CHECK(reserved_blocks_ >= 0 && AvailableBlocks() >= 0);
  for (BlockId block = 0; block < pool_.num_total(); ++block) {
    const BlockState state = pool_.state(block);
    const bool sealed = state == BlockState::kCached || state == BlockState::kReferenced;
    KVIK_CHECK(state != BlockState::kCached || index_.Contains(block));
    KVIK_CHECK(sealed || !index_.Contains(block));
    KVIK_CHECK(state == BlockState::kFilling || !loading_.contains(block));
    KVIK_CHECK(state == BlockState::kReferenced || !held_.contains(block));
    if (masks_ && masks_->Of(block) != nullptr) {
      KVIK_CHECK(state != BlockState::kFree, "free block %d has masks", block);
      KVIK_CHECK(!index_.Contains(block) || index_.quality(block).fidelity == Fidelity::kLossy,
                 "slots of block %d were dropped, but the index calls it exact", block);
    }
  }
}

}  // namespace kvik::kv
