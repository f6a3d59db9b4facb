// SPDX-License-Identifier: Apache-2.0
// kv/score_policy.h: the common half of policies that evict the block with the least score.
//
// Keeps every block's facts and state; a policy adds its score and what it learns from events.
// Victims are the least by (score, order of release): with equal scores that is exactly the order
// of lru, so a policy that cannot tell blocks apart makes no gaps of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/block_book.h"
#include "kv/eviction_policy.h"

namespace kvik::kv {

class ScorePolicy : public EvictionPolicy {
 public:
  void Track(const TrackedBlock& block) final;
  void Hit(std::span<const BlockId> blocks, const Access& access) final;
  void Touch(std::span<const BlockId> blocks, const Access& access) final;
  void Release(std::span<const BlockId> blocks, const Access& access) final;
  void Forget(BlockId block) final;
  [[nodiscard]] std::vector<BlockId> SelectVictims(size_t count, int64_t now_us) final;
  void Tick(int64_t now_us) override;
  [[nodiscard]] PolicyStats stats() const final { return blocks_.stats(); }

 protected:
  struct Block {
    BlockUse use = BlockUse::kUnknown;
    int32_t first_pos = 0;
    uint64_t content = 0;
    uint64_t release_order = 0;  // of the last release: smaller went first
    int64_t release_us = 0;
    int64_t uses = 0;         // hits, and 1 for the request that computed it
    double recompute_us = 0;  // or to be fetched from below; frozen at the last release
  };

  explicit ScorePolicy(const PolicyOptions& options);

  // The least goes first. Called for evictable blocks only. With PolicyOptions::selection kAuto and
  // kBatch all scores are taken once per SelectVictims, with kScan once per victim.
  [[nodiscard]] virtual double Score(const Block& block, BlockId id, int64_t now_us) = 0;
  // Told after the block's own fields are up to date.
  virtual void OnTrack(BlockId /*id*/) {}
  virtual void OnHit(BlockId /*id*/, const Access& /*access*/) {}
  virtual void OnRelease(BlockId /*id*/, const Access& /*access*/) {}
  virtual void OnEvict(BlockId /*id*/, double /*score*/) {}

  [[nodiscard]] const Block& block(BlockId id) const { return blocks_[id]; }
  [[nodiscard]] const PolicyOptions& options() const { return options_; }

 private:
  void RemoveEvictable(BlockId id);
  [[nodiscard]] double CostUs(const Block& block) const {
    return ReturnCostUs(options_.cost, options_.tier.get(), block.content, block.first_pos,
                        options_.block_size_tokens);
  }

  PolicyOptions options_;
  BlockBook<Block> blocks_;
  std::vector<BlockId> evictable_;  // in no order
  std::vector<int32_t> slot_;       // [num_blocks] index into evictable_
  uint64_t next_order_ = 0;
  TierWatch tier_watch_;
  size_t to_reweigh_ = 0;  // blocks below this id
};

}  // namespace kvik::kv
