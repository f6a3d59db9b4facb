// SPDX-License-Identifier: Apache-2.0
// kv/asym_run_policy.h: "asym-run": asym that evicts runs of blocks and charges for segments.
//
// Blocks that one request lets go of are cut into runs of 64 to 128 tokens; a run is worth what its
// blocks are together, per block. Every gap costs the next request a segment (k4 of the cost
// model), so a run between two resident neighbours is worth one segment more, and one with no
// neighbour left a segment less: gaps grow rather than multiply. Victims are taken from the run
// worth least, deepest first.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kv/reuse_value_policy.h"

namespace kvik::kv {

class AsymRunPolicy final : public ReuseValuePolicy {
 public:
  // A run's value depends on its neighbours and changes while victims are chosen, so kBatch looks
  // at all runs anew for each, like kScan.
  explicit AsymRunPolicy(const PolicyOptions& options);

  [[nodiscard]] std::string_view name() const override { return "asym-run"; }

 private:
  using RunId = int32_t;
  static constexpr RunId kNoRun = -1;
  // What is beside a block: a block that is tracked, or one of these.
  static constexpr BlockId kNothing = kNoBlock;  // computed anyway: a gap, or the new tokens
  static constexpr BlockId kResident = -2;       // held by others, or the beginning
  struct Place {
    BlockId before = kNothing;
    BlockId after = kNothing;
    RunId run = kNoRun;
  };
  struct Run {
    std::vector<BlockId> blocks;  // deepest last; empty: the id is free
    uint64_t order = 0;
    bool is_stale = false;  // its value has to be taken anew: listed in stale_
  };

  void AddEvictable(std::span<const BlockId> blocks) override;
  void RemoveEvictable(BlockId block) override;
  std::vector<BlockId> PopVictims(size_t count, int64_t now_us) override;
  void OnGone(BlockId block) override;
  void Reweigh(BlockId block) override { WeighLater(At(block).run); }

  void Link(std::span<const BlockId> contiguous, bool is_deepest);
  void AddRuns(std::span<const BlockId> contiguous);
  void NeighbourGone(BlockId neighbour, BlockId Place::*side, BlockId gone);
  void WeighLater(RunId run);
  void WeighNow();
  void Remove(RunId run);
  [[nodiscard]] LeastValueIndex::Item ItemOf(const Run& run) const;
  Place& At(BlockId block) { return places_[static_cast<size_t>(block)]; }
  [[nodiscard]] const Place& At(BlockId block) const { return places_[static_cast<size_t>(block)]; }
  Run& RunAt(RunId run) { return runs_[static_cast<size_t>(run)]; }

  size_t blocks_per_run_;
  std::vector<Place> places_;  // [num_blocks]
  std::vector<Run> runs_;      // [num_blocks] more there cannot be
  std::vector<RunId> free_runs_;
  std::vector<RunId> stale_;
  uint64_t next_order_ = 0;
};

}  // namespace kvik::kv
