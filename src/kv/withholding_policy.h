// SPDX-License-Identifier: Apache-2.0
// kv/withholding_policy.h: the common half of overlays: policies on top of any other policy, which
// say of some blocks that they go before all others, or after all others for a while.
//
// Such blocks are withheld: to the policy below they look held, until their time is over and it
// hears Release then. Victims are first the withheld blocks below the default priority, the lowest
// priority and earliest release first; then what the policy below chooses; then, when it has
// nothing left, the withheld ones above the default priority, the lowest priority and soonest
// expiry first. So a withheld block is evictable at all times and nothing can wait for one.
//
// Pins are withheld blocks of which at most a share of the cache may exist: a request that would
// exceed it is left to the policy below. What is not withheld costs a forwarded call.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kv/eviction_policy.h"
#include "kv/retention.h"

namespace kvik::kv {

class WithholdingPolicy : public EvictionPolicy {
 public:
  [[nodiscard]] std::string_view name() const override { return inner_->name(); }
  void Track(const TrackedBlock& block) override { inner_->Track(block); }
  void Hit(std::span<const BlockId> blocks, const Access& access) override {
    inner_->Hit(blocks, access);
  }
  void Missed(std::span<const uint64_t> contents, const Access& access) override {
    inner_->Missed(contents, access);
  }
  void Touch(std::span<const BlockId> blocks, const Access& access) override;
  void Release(std::span<const BlockId> blocks, const Access& access) final;
  void Forget(BlockId block) override;
  [[nodiscard]] std::vector<BlockId> SelectVictims(size_t count, int64_t now_us) override;
  void Tick(int64_t now_us) override;
  [[nodiscard]] HitScope hits() const override { return inner_->hits(); }
  [[nodiscard]] PolicyStats stats() const override;
  [[nodiscard]] std::vector<PolicyReading> Readings() const override { return inner_->Readings(); }
  [[nodiscard]] bool WeighsHints() const override { return inner_->WeighsHints(); }
  [[nodiscard]] bool HoldsFor(std::span<const BlockId> blocks, uint64_t session) const override {
    return inner_->HoldsFor(blocks, session);
  }
  [[nodiscard]] std::string SaveState() const override { return inner_->SaveState(); }
  Result<void> RestoreState(std::string_view state) override { return inner_->RestoreState(state); }

  [[nodiscard]] const EvictionPolicy& inner() const { return *inner_; }

 protected:
  // What is to become of one block.
  struct Verdict {
    int32_t priority = kDefaultPriority;  // the default: not withheld
    int64_t until_us = kForGood;
    bool pin = false;  // counts against the share; of a release all blocks or none
    friend bool operator==(const Verdict&, const Verdict&) = default;
  };

  // At most `max_pinned_share` of `num_blocks` are pinned at one time.
  WithholdingPolicy(std::unique_ptr<EvictionPolicy> inner, int32_t num_blocks,
                    double max_pinned_share);

  // One verdict for each of the released blocks, or none at all if all have the default. Called
  // for every Release, before the policy below hears of it.
  virtual void Judge(std::span<const BlockId> blocks, const Access& access,
                     std::vector<Verdict>& verdicts) = 0;

  [[nodiscard]] bool IsWithheld(BlockId block) const {
    return places_[static_cast<size_t>(block)].group != kNone;
  }
  [[nodiscard]] EvictionPolicy& mutable_inner() { return *inner_; }

 private:
  static constexpr int32_t kNone = -1;
  // Blocks next to each other in one release, with one verdict.
  struct Group {
    Verdict verdict;
    uint64_t order = 0;  // of release
    RequestFacts request;
    std::vector<BlockId> blocks;  // the first to go first; kNoBlock where one is gone
    size_t first = 0;             // blocks before this one are gone
    int32_t left = 0;
  };
  struct Place {
    int32_t group = kNone;
    int32_t index = 0;
  };
  // In the order in which groups are taken.
  struct Turn {
    int32_t priority = 0;
    int64_t until_us = 0;  // 0 below the default priority, where expiry does not matter
    uint64_t order = 0;
    int32_t group = kNone;
    friend auto operator<=>(const Turn&, const Turn&) = default;
  };
  struct Expiry {
    int64_t until_us = 0;
    uint64_t order = 0;
    int32_t group = kNone;
    friend auto operator<=>(const Expiry&, const Expiry&) = default;
  };

  Group& GroupAt(int32_t group) { return groups_[static_cast<size_t>(group)]; }
  [[nodiscard]] static Turn TurnOf(const Group& group, int32_t id);
  [[nodiscard]] bool FitsPinned(std::span<const Verdict> verdicts) const;
  void Withhold(std::span<const BlockId> blocks, const Verdict& verdict, const Access& access);
  // Takes a block out of its group.
  void Drop(BlockId block);
  void EndGroup(int32_t group);
  void Expire(int64_t now_us);
  void TakeWithheld(bool below_default, size_t count, std::vector<BlockId>& victims);

  std::unique_ptr<EvictionPolicy> inner_;
  int64_t max_pinned_ = 0;
  std::vector<Place> places_;  // [num_blocks]
  std::vector<Group> groups_;
  std::vector<int32_t> free_groups_;
  std::set<Turn> turns_;
  std::set<Expiry> expiries_;  // of groups that have one
  uint64_t next_order_ = 0;
  std::vector<Verdict> verdicts_;  // reused
  std::vector<BlockId> passed_;    // reused
  int64_t withheld_ = 0;           // blocks
  int64_t pinned_ = 0;             // of which
  int64_t evicted_ = 0;            // withheld blocks that were victims
};

}  // namespace kvik::kv
