// SPDX-License-Identifier: Apache-2.0
// kv/hazard_policy.h: "hazard", keep what is expected to save most.
//
// A block is worth G(age) * dT: what recomputing it costs, times the chance (learned while
// running, see reuse_hazard.h) that it is wanted before the cache has turned over. Chances are a
// matter of *which request* used the block last, not of the block, so the unit is the run: blocks
// next to each other that one request let go of. Selection scores runs and takes blocks from the
// cheapest in chunks.
//
// Beside it runs an LRU of the same size on metadata alone; when that would have made requests
// cheaper lately, victims come in its order until it does not (lru_guard.h).
//
// "hazard-prefix" is the form for engines that read prefixes only: a block with resident children
// is not taken, and runs are taken from their deep end.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv/block_book.h"
#include "kv/content_history.h"
#include "kv/eviction_policy.h"
#include "kv/lru_guard.h"
#include "kv/reuse_class.h"
#include "kv/reuse_hazard.h"
#include "kv/session_tracker.h"

namespace kvik::kv {

class HazardPolicy final : public EvictionPolicy {
 public:
  HazardPolicy(const PolicyOptions& options, HitScope scope);

  [[nodiscard]] std::string_view name() const override;
  void Track(const TrackedBlock& block) override;
  void Hit(std::span<const BlockId> blocks, const Access& access) override;
  void Missed(std::span<const uint64_t> contents, const Access& access) override;
  void Touch(std::span<const BlockId> blocks, const Access& access) override;
  void Release(std::span<const BlockId> blocks, const Access& access) override;
  void Forget(BlockId block) override;
  [[nodiscard]] std::vector<BlockId> SelectVictims(size_t count, int64_t now_us) override;
  // Upkeep in slices of some 100 us at most.
  void Tick(int64_t now_us) override;
  [[nodiscard]] HitScope hits() const override { return scope_; }
  [[nodiscard]] PolicyStats stats() const override { return blocks_.stats(); }
  [[nodiscard]] std::vector<PolicyReading> Readings() const override;
  // Learns how true they are, by class.
  [[nodiscard]] bool WeighsHints() const override { return true; }
  // The hazards and the cache's turnover time, as JSON.
  [[nodiscard]] std::string SaveState() const override;
  Result<void> RestoreState(std::string_view state) override;

  [[nodiscard]] const LruGuard& guard() const { return guard_; }
  // Contents known, resident or gone: at most max_contents().
  [[nodiscard]] size_t num_contents() const { return history_.size(); }
  [[nodiscard]] size_t max_contents() const { return history_.capacity(); }
  // Runs known: none without a known content.
  [[nodiscard]] size_t num_runs() const { return runs_.size() - free_runs_.size(); }

 private:
  static constexpr int32_t kNone = -1;
  struct Block {
    BlockUse use = BlockUse::kUnknown;
    int32_t first_pos = 0;
    int32_t slot = kNone;    // of its content
    int32_t parent = kNone;  // slot of the content before it, if prefixes matter
    int32_t run = kNone;     // while evictable
    int32_t index = kNone;   // in the run
  };
  // Of a content, resident or not; beside ContentHistory's slots.
  struct Content {
    uint64_t session = 0;   // that used it last
    int32_t run = kNone;    // the last request that let go of it, while nobody has wanted it since
    int32_t residents = 0;  // blocks that hold it: at most one exact and one lossy
    int32_t children = 0;   // resident blocks that come after it
    BlockId block = kNoBlock;  // one of the residents
    bool shared = false;       // by several sessions
    bool unlisted = false;     // out of history_'s order
  };
  struct Run {
    int node = 0;
    int bin = 0;  // of its age
    int64_t released_us = 0;
    double counted_age_s = 0;  // waiting is counted up to this age
    double block_weight = 0;   // 1 / blocks of the request
    uint64_t order = 0;        // of release
    int32_t waiting = 0;       // contents that nobody wanted since
    int32_t evictable = 0;     // blocks
    int32_t active = kNone;    // index into active_ while evictable > 0
    int32_t first_pos = 0;     // of blocks[0]
    int32_t first = 0;         // blocks outside [first, end) are gone
    int32_t end = 0;
    std::vector<BlockId> blocks;  // ascending by position; kNoBlock where one is gone
  };
  // One full block of the request being admitted.
  struct Use {
    int32_t slot = kNone;
    int32_t position = 0;  // in blocks
    int32_t miss = kNone;  // index into the contents that were missed, or a hit
  };
  struct InFlight {
    SessionTurn turn;
    size_t blocks = 0;  // that it arrived with
  };
  // A run as a source of victims.
  struct Candidate {
    double score = 0;  // of the block to go next
    double gain = 0;
    uint64_t order = 0;
    int32_t run = kNone;
    // The least score is on top of a heap; with equal scores the earliest release.
    friend bool operator<(const Candidate& a, const Candidate& b) {
      return a.score > b.score || (a.score == b.score && a.order > b.order);
    }
  };

  Content& ContentAt(int32_t slot) { return contents_[static_cast<size_t>(slot)]; }
  Run& RunAt(int32_t run) { return runs_[static_cast<size_t>(run)]; }
  [[nodiscard]] static double AgeS(const Run& run, int64_t now_us) {
    return static_cast<double>(now_us - run.released_us) * 1e-6;
  }
  [[nodiscard]] double CostUs(int64_t first_pos) const {
    return cost_.RecomputeUs(first_pos, block_size_tokens_);
  }
  // Asked for at every selection, so an estimate of the tier below is always that of now.
  [[nodiscard]] double CostUs(int64_t first_pos, uint64_t content) const {
    return ReturnCostUs(cost_, tier_.get(), content, first_pos, block_size_tokens_);
  }
  [[nodiscard]] double HorizonS() const;

  // Contents.
  int32_t SlotOf(uint64_t content);
  void DropUnneeded(int32_t slot);
  void Leave(BlockId id);
  void SetRun(int32_t slot, int32_t run);
  void CountWaiting(Run& run, int64_t now_us);
  void CountReturn(int32_t slot, const Access& access);
  void UseContent(int32_t slot);
  SessionTurn InferSession();
  int32_t EndInFlight(std::span<const BlockId> blocks, const Access& access);

  // Runs.
  void OpenRun(std::vector<BlockId>& deepest_first, BlockKind kind, double weight,
               const Access& access, int32_t turn);
  void FreeIfDone(int32_t run);
  void TakeFromRun(BlockId id);
  void RemoveFromRun(int32_t run, int32_t index);

  // Selection.
  [[nodiscard]] double NextCostUs(const Run& run, bool from_deep_end) const;
  double Gain(Run& run, int64_t now_us);
  Candidate MakeCandidate(int32_t run, bool by_gain, int64_t now_us);
  [[nodiscard]] bool HasChildren(BlockId id);
  [[nodiscard]] bool LeafIsNext(int32_t run);
  void NoteEvictions(double age_s, size_t count);
  void LeaveAll(std::span<const BlockId> victims);

  HitScope scope_;
  int32_t block_size_tokens_;
  int32_t chunk_blocks_;
  CostModel cost_;
  std::shared_ptr<const TierCost> tier_;  // null: what is gone is computed

  BlockBook<Block> blocks_;
  ContentHistory history_;
  std::vector<Content> contents_;  // [history_.capacity()]
  // [history_.capacity()] The latest request of two blocks or more whose turn was inferred and that
  // ended in this content; turn 0: none.
  std::vector<SessionTurn> ends_;
  std::vector<Run> runs_;
  std::vector<int32_t> free_runs_;
  std::vector<int32_t> active_;  // runs with evictable blocks, in no order
  uint64_t next_order_ = 0;
  std::vector<Candidate> heap_;

  ReuseHazard hazard_;
  double eviction_age_s_ = 0;  // smoothed; 0: nothing was evicted yet
  LruGuard guard_;
  size_t next_counted_ = 0;  // run, by Tick
  size_t next_rebuilt_ = 0;  // active run, by Tick

  std::vector<Use> uses_;
  uint64_t num_inferred_sessions_ = 0;
  std::unordered_map<uint64_t, InFlight> in_flight_;  // requests whose turn was inferred
};

}  // namespace kvik::kv
