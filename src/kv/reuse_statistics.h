// SPDX-License-Identifier: Apache-2.0
// kv/reuse_statistics.h: what asym learns while it runs: lifespans, and what a tool call promises.
//
// Blocks are of two classes by the request that let go of them last: its answer called a tool, or
// not. A class's lifespan is the P99 of its gaps, from release to next use, of blocks that were
// still there and of evicted ones that were asked for again; it starts at a guess and follows every
// 30 s once 200 gaps were seen. The tool factor is P(return | tool call) / P(return), where a
// request returns when the deepest block it let go of is used or asked for again.
// Memory is bounded, a Tick takes microseconds. Thread-compatible.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "kv/gap_histogram.h"
#include "kv/ghost_map.h"

namespace kvik::kv {

enum class ReuseClass : uint8_t { kChat, kTool };
constexpr int kReuseClasses = 2;

// Of the last time a block was let go of.
struct LastRelease {
  int64_t time_us = 0;
  ReuseClass cls = ReuseClass::kChat;
  bool awaits_return = false;  // the deepest of its request, not used since
};

class ReuseStatistics {
 public:
  // `fixed_lifespan_s` > 0 turns learning of lifespans off.
  ReuseStatistics(double fixed_lifespan_s, int32_t num_blocks);

  // A request let go of blocks. Mark one of them awaits_return.
  void Departed(ReuseClass cls);
  // Blocks with this last release are used again; `count` of them at once.
  void Returned(const LastRelease& release, int64_t now_us, int64_t count);
  void Evicted(uint64_t content, const LastRelease& release) { ghosts_.Add(content, release); }
  // These contents were wanted and are gone.
  void Missed(std::span<const uint64_t> contents, int64_t now_us);

  [[nodiscard]] const GhostMap<LastRelease>& ghosts() const { return ghosts_; }

  // True when lifespans were taken anew.
  bool Tick(int64_t now_us);
  [[nodiscard]] double lifespan_s(ReuseClass cls) const { return ClassOf(cls).lifespan_s; }
  // Of a block that was let go of after a request of this class; 0 for chat.
  [[nodiscard]] double LnReturnFactor(ReuseClass cls) const;

  // Lifespans, gaps and counts as JSON, without ghosts and absolute times. See EvictionPolicy.
  [[nodiscard]] std::string SaveState() const;
  Result<void> RestoreState(std::string_view state);

 private:
  struct Class {
    GapHistogram gaps;
    double lifespan_s = 0;
    double departed = 0;  // requests, decayed
    double returned = 0;
  };
  [[nodiscard]] const Class& ClassOf(ReuseClass c) const {
    return classes_[static_cast<size_t>(c)];
  }
  Class& ClassOf(ReuseClass c) { return classes_[static_cast<size_t>(c)]; }

  bool learns_lifespans_;
  std::array<Class, kReuseClasses> classes_;
  GhostMap<LastRelease> ghosts_;
  std::optional<int64_t> last_update_us_;
};

}  // namespace kvik::kv
