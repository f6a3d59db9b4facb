// SPDX-License-Identifier: Apache-2.0
// kv/hint_policy.h: an overlay that obeys RequestFacts::will_continue.
//
// A session that ends leaves blocks that nobody will want: they go before all others, except those
// that another session used, too. A session that goes on is pinned for as long as such sessions
// have taken to come back (kv/duration_history.h), within half of the cache. A policy that weighs
// hints itself, as hazard does, needs no such overlay.
//
// Nothing is noted before the first hint; what is in the cache by then counts as shared.
//
// Requests of unknown sessions count as a session each.
#pragma once

#include <memory>
#include <vector>

#include "kv/return_tracker.h"
#include "kv/withholding_policy.h"

namespace kvik::kv {

class HintPolicy final : public WithholdingPolicy {
 public:
  static constexpr double kMaxPinnedShare = 0.5;

  // `leave_tool_calls`: the policy below pins what calls a tool, and knows better for how long.
  HintPolicy(std::unique_ptr<EvictionPolicy> inner, const PolicyOptions& options,
             bool leave_tool_calls);

  void Track(const TrackedBlock& block) override;
  void Hit(std::span<const BlockId> blocks, const Access& access) override;
  void Missed(std::span<const uint64_t> contents, const Access& access) override;
  void Forget(BlockId block) override;
  [[nodiscard]] std::vector<BlockId> SelectVictims(size_t count, int64_t now_us) override;

  [[nodiscard]] const DurationHistory& durations() const { return returns_.durations(); }

 private:
  struct Use {
    uint64_t session = 0;  // of the last request; 0: none yet
    bool shared = true;    // by several, as far as is known
  };
  void Judge(std::span<const BlockId> blocks, const Access& access,
             std::vector<Verdict>& verdicts) override;
  void NoteUse(BlockId block, uint64_t session);

  bool leave_tool_calls_;
  bool listening_ = false;  // somebody gave a hint: uses are noted from then on
  std::vector<Use> uses_;   // [num_blocks]
  ReturnTracker returns_;
};

}  // namespace kvik::kv
