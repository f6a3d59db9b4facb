// SPDX-License-Identifier: Apache-2.0
// kv/reuse_value_policy.h: the common half of asym, asym-last, asym-run and max-score.
//
// Keeps each block's state, its uses and its last release, and feeds the statistics; a policy
// decides what a block that became evictable is worth and keeps it where the least is found.
//
// A use counts at the time the next one begins or the block is let go of, whichever comes first:
// a conversation that takes a minute to answer is not a minute old when it ends. So with equal
// costs and single uses the least value is the earliest release, as with lru.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/block_book.h"
#include "kv/eviction_policy.h"
#include "kv/least_value_index.h"
#include "kv/reuse_curve.h"
#include "kv/reuse_statistics.h"

namespace kvik::kv {

class ReuseValuePolicy : public EvictionPolicy {
 public:
  void Track(const TrackedBlock& block) final;
  void Hit(std::span<const BlockId> blocks, const Access& access) final;
  void Missed(std::span<const uint64_t> contents, const Access& access) final;
  void Touch(std::span<const BlockId> blocks, const Access& access) final;
  void Release(std::span<const BlockId> blocks, const Access& access) final;
  void Forget(BlockId block) final;
  [[nodiscard]] std::vector<BlockId> SelectVictims(size_t count, int64_t now_us) final;
  void Tick(int64_t now_us) final;
  [[nodiscard]] PolicyStats stats() const final { return blocks_.stats(); }
  [[nodiscard]] std::vector<PolicyReading> Readings() const final;
  [[nodiscard]] std::string SaveState() const final { return statistics_.SaveState(); }
  Result<void> RestoreState(std::string_view state) final;

  [[nodiscard]] const ReuseStatistics& statistics() const { return statistics_; }
  [[nodiscard]] const LeastValueIndex& index() const { return index_; }

 protected:
  struct Block {
    BlockUse use = BlockUse::kUnknown;
    int32_t first_pos = 0;
    uint64_t content = 0;
    bool used = false;  // `uses` has one
    DecayedUses uses{};
    LastRelease release{};
    double ln_return_factor = 0;  // frozen at the last release
  };

  // `all_uses`: earlier uses count too, decayed; else only the last one.
  ReuseValuePolicy(const PolicyOptions& options, bool all_uses);

  // One request's blocks, as in Release. Their facts are up to date.
  virtual void AddEvictable(std::span<const BlockId> blocks) = 0;
  // The block is held again, or leaves the cache. Called before its state changes.
  virtual void RemoveEvictable(BlockId block) = 0;
  // The block is evictable and getting it back costs something else than when it became so.
  virtual void Reweigh(BlockId /*block*/) {}
  // Chooses and removes; the base forgets them afterwards.
  virtual std::vector<BlockId> PopVictims(size_t count, int64_t now_us) = 0;
  // The block leaves the cache, evictable or not, and not through PopVictims.
  virtual void OnGone(BlockId /*block*/) {}

  [[nodiscard]] const Block& block(BlockId id) const { return blocks_[id]; }
  [[nodiscard]] const PolicyOptions& options() const { return options_; }
  LeastValueIndex& mutable_index() { return index_; }
  // Of getting a block back, as it is now.
  [[nodiscard]] double CostUs(const Block& block) const {
    return ReturnCostUs(options_.cost, options_.tier.get(), block.content, block.first_pos,
                        options_.block_size_tokens);
  }

 private:
  int64_t Now(int64_t now_us);
  void Use(Block& block, int64_t now_us);
  void FollowLifespans();
  void FollowTier();

  PolicyOptions options_;
  bool all_uses_;
  ReuseStatistics statistics_;
  LeastValueIndex index_;
  BlockBook<Block> blocks_;
  TierWatch tier_watch_;
  size_t to_reweigh_ = 0;  // blocks below this id
  int64_t now_us_;         // the latest time heard of
};

}  // namespace kvik::kv
