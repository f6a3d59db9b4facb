// SPDX-License-Identifier: Apache-2.0
// kv/session_tracker.h: which session a request belongs to, when nobody says.
//
// A request continues the earlier one whose last full block is the last or the last but one of its
// own longest known prefix, if that earlier one had at least two blocks; else it opens a session.
// (The last but one: another turn of the session may have gone a block further.) Of several earlier
// requests that ended in the same block the latest counts.
//
// Works on digests of chained block keys: equal digests mean equal prefixes. Memory is bounded:
// blocks not seen for long are forgotten. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>

namespace kvik::kv {

// What a request is. Sessions are numbered from 0 in order of their first request, turns from 1.
// (RequestFacts keep 0 for "unknown": session + 1 goes there.)
struct SessionTurn {
  uint64_t session = 0;
  int32_t turn = 1;
  friend bool operator==(const SessionTurn&, const SessionTurn&) = default;
};

class SessionTracker {
 public:
  static constexpr int kEndWithinBlocks = 2;  // the last known block or the one before it
  static constexpr size_t kMinBlocksToContinue = 2;

  // Remembers at least the `max_blocks` / 2 blocks seen last and at most `max_blocks`.
  // REQUIRES: max_blocks >= 2.
  explicit SessionTracker(size_t max_blocks);

  // A request arrives with these full blocks, in order. They are known from now on. O(blocks).
  SessionTurn Arrive(std::span<const uint64_t> blocks);
  // The request has grown (by its answer): `blocks` follow what it arrived with, and
  // `total_blocks` is its new length. Its end is now the last of them. O(blocks).
  void Grow(const SessionTurn& request, std::span<const uint64_t> blocks, size_t total_blocks);

  [[nodiscard]] size_t num_blocks() const { return young_.size() + old_.size(); }
  [[nodiscard]] uint64_t num_sessions() const { return num_sessions_; }

 private:
  struct Block {
    bool is_end = false;  // of a request with >= 2 blocks, the latest of which is:
    SessionTurn end;
  };
  Block* Find(uint64_t digest);
  // The block, new or known, as one seen now.
  Block& See(uint64_t digest);

  // Two generations: when the young one is full it becomes the old one, and the old one is
  // forgotten. What is seen again moves to the young one.
  size_t max_young_;
  std::unordered_map<uint64_t, Block> young_;
  std::unordered_map<uint64_t, Block> old_;
  uint64_t num_sessions_ = 0;
};

}  // namespace kvik::kv
