// SPDX-License-Identifier: Apache-2.0
#include "kv/content_history.h"

#include "base/check.h"

namespace kvik::kv {

ContentHistory::ContentHistory(size_t shadow_blocks, size_t max_contents)
    : shadow_blocks_(shadow_blocks),
      map_(max_contents),
      slots_(max_contents + 1),
      sentinel_(static_cast<int32_t>(max_contents)),
      shadow_end_(sentinel_) {
  KVIK_CHECK(shadow_blocks >= 1 && shadow_blocks < max_contents);
  At(sentinel_).prev = sentinel_;
  At(sentinel_).next = sentinel_;
  free_.reserve(max_contents);
  for (int32_t slot = sentinel_ - 1; slot >= 0; --slot) {
    free_.push_back(slot);
  }
}

int32_t ContentHistory::Add(uint64_t digest) {
  KVIK_CHECK(!free_.empty());
  const int32_t slot = free_.back();
  free_.pop_back();
  map_.Insert(digest, slot);
  At(slot) = Slot{.digest = digest};
  PushFront(slot);
  return slot;
}

void ContentHistory::Use(int32_t slot) {
  if (listed(slot)) {
    Unlist(slot);
  }
  PushFront(slot);
}

int32_t ContentHistory::Oldest() const {
  const int32_t slot = At(sentinel_).prev;
  return slot == sentinel_ ? kNoSlot : slot;
}

void ContentHistory::PushFront(int32_t slot) {
  Slot& s = At(slot);
  s.prev = sentinel_;
  s.next = At(sentinel_).next;
  At(s.next).prev = slot;
  At(sentinel_).next = slot;
  s.in_shadow = true;
  if (shadow_end_ == sentinel_) {
    shadow_end_ = slot;
  }
  if (++shadow_size_ > shadow_blocks_) {
    At(shadow_end_).in_shadow = false;
    shadow_end_ = At(shadow_end_).prev;
    --shadow_size_;
  }
}

void ContentHistory::Unlist(int32_t slot) {
  Slot& s = At(slot);
  KVIK_CHECK(s.next != kNoSlot);
  if (s.in_shadow) {
    if (shadow_end_ == slot) {
      shadow_end_ = s.prev;
    }
    s.in_shadow = false;
    --shadow_size_;
  }
  At(s.prev).next = s.next;
  At(s.next).prev = s.prev;
  s.prev = kNoSlot;
  s.next = kNoSlot;
}

void ContentHistory::Forget(int32_t slot) {
  if (listed(slot)) {
    Unlist(slot);
  }
  map_.Erase(At(slot).digest);
  free_.push_back(slot);
}

}  // namespace kvik::kv
