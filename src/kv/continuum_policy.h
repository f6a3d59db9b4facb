// SPDX-License-Identifier: Apache-2.0
// kv/continuum_policy.h: "continuum", an overlay for agents: while a tool runs, the KV of the
// request that called it is pinned.
//
// How long comes from how long earlier calls of the same tool took until their session was back
// (kv/duration_history.h; queueing counts, for the KV must last until the request is admitted).
// After that the policy below decides. Requests whose KV is pinned should go first (HoldsFor):
// every moment that they wait their pin takes room from others. Pins take at most half of the
// cache, and a pinned block still goes when nothing else is left.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kv/return_tracker.h"
#include "kv/withholding_policy.h"

namespace kvik::kv {

class ContinuumPolicy final : public WithholdingPolicy {
 public:
  static constexpr double kMaxPinnedShare = 0.5;

  ContinuumPolicy(std::unique_ptr<EvictionPolicy> inner, const PolicyOptions& options);

  [[nodiscard]] std::string_view name() const override { return name_; }
  void Track(const TrackedBlock& block) override;
  void Hit(std::span<const BlockId> blocks, const Access& access) override;
  void Missed(std::span<const uint64_t> contents, const Access& access) override;
  void Forget(BlockId block) override;
  [[nodiscard]] std::vector<BlockId> SelectVictims(size_t count, int64_t now_us) override;
  [[nodiscard]] std::vector<PolicyReading> Readings() const override;
  [[nodiscard]] bool HoldsFor(std::span<const BlockId> blocks, uint64_t session) const override;
  // Durations, and the state of the policy below.
  [[nodiscard]] std::string SaveState() const override;
  // Also takes a state of the policy below alone.
  Result<void> RestoreState(std::string_view state) override;

  [[nodiscard]] const DurationHistory& durations() const { return returns_.durations(); }

 private:
  void Judge(std::span<const BlockId> blocks, const Access& access,
             std::vector<Verdict>& verdicts) override;

  std::string name_;
  ReturnTracker returns_;
};

}  // namespace kvik::kv
