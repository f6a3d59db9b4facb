// SPDX-License-Identifier: Apache-2.0
// kv/return_tracker.h: when does a request that ended come back as the next one of its session?
//
// A departure is known again by its session, if it has one, and by either of the two deepest
// blocks that it let go of being used or, after they were evicted, being wanted: so what was
// evicted teaches as much as what was kept. (The second deepest: the next prompt may spell the end
// of the answer in other tokens.) What a departure returned after goes to a DurationHistory, by its
// kind. Memory is bounded. Thread-compatible.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/types.h"
#include "kv/duration_history.h"
#include "kv/eviction_policy.h"
#include "kv/ghost_map.h"

namespace kvik::kv {

class ReturnTracker {
 public:
  static constexpr size_t kMarkedBlocks = 2;
  static constexpr size_t kMaxDepartures = 16384;  // the last ones are known

  explicit ReturnTracker(int32_t num_blocks);

  void Track(const TrackedBlock& block) { MarkOf(block.block) = {block.content, kNobody}; }
  // A request of this kind ended now. `blocks`: as in EvictionPolicy::Release; not empty.
  void Depart(uint64_t kind, std::span<const BlockId> blocks, const Access& access);
  // As the policy hears them.
  void Hit(std::span<const BlockId> blocks, const Access& access);
  void Missed(std::span<const uint64_t> contents, const Access& access);
  void Evicted(std::span<const BlockId> blocks);
  void Forgotten(BlockId block) { MarkOf(block).departure = kNobody; }

  // The deepest block of a departure that has not returned and that a request with these hits, or
  // of this session, would be the return of; kNoBlock without one.
  [[nodiscard]] BlockId AwaitedBlock(std::span<const BlockId> hits, uint64_t session) const;

  [[nodiscard]] const DurationHistory& durations() const { return durations_; }
  DurationHistory& mutable_durations() { return durations_; }
  [[nodiscard]] size_t num_departures() const { return departures_.size(); }

 private:
  static constexpr uint64_t kNobody = 0;
  struct Departure {
    uint64_t kind = 0;
    uint64_t session = 0;
    int64_t time_us = 0;
    BlockId deepest = kNoBlock;
  };
  struct Mark {
    uint64_t content = 0;
    uint64_t departure = kNobody;  // maybe one that is over
  };
  Mark& MarkOf(BlockId block) { return marks_[static_cast<size_t>(block)]; }
  [[nodiscard]] const Mark& MarkOf(BlockId block) const {
    return marks_[static_cast<size_t>(block)];
  }
  void Return(uint64_t departure, int64_t now_us);
  void End(uint64_t departure);

  std::vector<Mark> marks_;  // [num_blocks]
  std::unordered_map<uint64_t, Departure> departures_;
  std::unordered_map<uint64_t, uint64_t> of_session_;  // the latest departure
  uint64_t last_departure_ = kNobody;
  GhostMap<uint64_t> ghosts_;  // departures, by marked contents that were evicted
  DurationHistory durations_;
};

}  // namespace kvik::kv
