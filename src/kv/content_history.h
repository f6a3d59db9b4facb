// SPDX-License-Identifier: Apache-2.0
// kv/content_history.h: the contents seen lately, resident or not, in order of their last use.
//
// The first `shadow_blocks` of the order are what an LRU cache of that size would hold now: a
// shadow that costs metadata only. Contents behind them are ghosts of ghosts, known until room is
// needed. Each content has a slot, a small number for arrays beside this one. Every operation is
// O(1). Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kv/digest_map.h"

namespace kvik::kv {

class ContentHistory {
 public:
  static constexpr int32_t kNoSlot = DigestMap::kAbsent;

  // REQUIRES: 1 <= shadow_blocks < max_contents.
  ContentHistory(size_t shadow_blocks, size_t max_contents);

  [[nodiscard]] int32_t Find(uint64_t digest) const { return map_.Find(digest); }
  [[nodiscard]] bool full() const { return free_.empty(); }
  [[nodiscard]] size_t size() const { return map_.size(); }
  [[nodiscard]] size_t capacity() const { return slots_.size() - 1; }

  // A content not known so far, in use now. REQUIRES: absent, not full.
  int32_t Add(uint64_t digest);
  // The content is used now.
  void Use(int32_t slot);
  // The one whose last use is longest ago, of those in the order; kNoSlot without any.
  [[nodiscard]] int32_t Oldest() const;
  // Takes a content out of the order (until its next use) without forgetting it.
  void Unlist(int32_t slot);
  [[nodiscard]] bool listed(int32_t slot) const { return At(slot).next != kNoSlot; }
  void Forget(int32_t slot);
  [[nodiscard]] uint64_t digest(int32_t slot) const { return At(slot).digest; }

  // Whether the LRU cache would hold it.
  [[nodiscard]] bool InShadow(int32_t slot) const { return At(slot).in_shadow; }
  [[nodiscard]] size_t shadow_size() const { return shadow_size_; }

 private:
  struct Slot {
    uint64_t digest = 0;
    int32_t prev = kNoSlot;  // used later
    int32_t next = kNoSlot;  // used earlier; kNoSlot: not in the order
    bool in_shadow = false;
  };
  [[nodiscard]] const Slot& At(int32_t slot) const { return slots_[static_cast<size_t>(slot)]; }
  [[nodiscard]] Slot& At(int32_t slot) { return slots_[static_cast<size_t>(slot)]; }
  void PushFront(int32_t slot);

  size_t shadow_blocks_;
  DigestMap map_;
  std::vector<Slot> slots_;    // the last is the sentinel of the circular list
  std::vector<int32_t> free_;  // stack
  int32_t sentinel_;
  int32_t shadow_end_;  // the shadow's oldest; the sentinel when it is empty
  size_t shadow_size_ = 0;
};

}  // namespace kvik::kv
