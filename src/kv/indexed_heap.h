// SPDX-License-Identifier: Apache-2.0
// kv/indexed_heap.h: a heap of items [0, n) by (key, order) from which any item can be erased.
//
// Four children a node: half the levels of a binary heap, and the children of a node share a cache
// line or two. O(log size) a Push or Erase, O(1) when keys arrive in ascending order.
// Thread-compatible.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace kvik::kv {

class IndexedHeap {
 public:
  struct Entry {
    int64_t key = 0;
    uint64_t order = 0;  // of two equal keys the smaller order is less
    int32_t item = 0;

    friend bool operator<(const Entry& a, const Entry& b) {
      return a.key < b.key || (a.key == b.key && a.order < b.order);
    }
  };

  explicit IndexedHeap(size_t num_items) : position_(num_items) { entries_.reserve(num_items); }

  [[nodiscard]] bool empty() const { return entries_.empty(); }
  [[nodiscard]] size_t size() const { return entries_.size(); }
  [[nodiscard]] bool Contains(int32_t item) const {
    const size_t i = At(item);
    return i < entries_.size() && entries_[i].item == item;
  }
  // REQUIRES: not empty.
  [[nodiscard]] const Entry& least() const { return entries_.front(); }

  // REQUIRES: the item is not in the heap.
  void Push(const Entry& entry) {
    KVIK_CHECK(!Contains(entry.item));
    entries_.push_back(entry);
    SiftUp(entries_.size() - 1, entry);
  }
  // REQUIRES: the item is in the heap.
  void Erase(int32_t item) {
    KVIK_CHECK(Contains(item));
    const size_t hole = At(item);
    const Entry last = entries_.back();
    entries_.pop_back();
    if (hole == entries_.size()) {
      return;
    }
    if (hole > 0 && last < entries_[Parent(hole)]) {
      SiftUp(hole, last);
    } else {
      SiftDown(hole, last);
    }
  }
  // O(1).
  void Clear() { entries_.clear(); }

 private:
  static constexpr size_t kArity = 4;
  static size_t Parent(size_t i) { return (i - 1) / kArity; }

  [[nodiscard]] size_t At(int32_t item) const { return position_[static_cast<size_t>(item)]; }
  void Place(size_t i, const Entry& entry) {
    entries_[i] = entry;
    position_[static_cast<size_t>(entry.item)] = static_cast<uint32_t>(i);
  }
  void SiftUp(size_t hole, const Entry& entry) {
    while (hole > 0 && entry < entries_[Parent(hole)]) {
      Place(hole, entries_[Parent(hole)]);
      hole = Parent(hole);
    }
    Place(hole, entry);
  }
  void SiftDown(size_t hole, const Entry& entry) {
    for (;;) {
      const size_t first = hole * kArity + 1;
      if (first >= entries_.size()) {
        break;
      }
      const size_t end = std::min(first + kArity, entries_.size());
      size_t least = first;
      for (size_t child = first + 1; child < end; ++child) {
        if (entries_[child] < entries_[least]) {
          least = child;
        }
      }
      if (!(entries_[least] < entry)) {
        break;
      }
      Place(hole, entries_[least]);
      hole = least;
    }
    Place(hole, entry);
  }

  std::vector<Entry> entries_;
  std::vector<uint32_t> position_;  // [num_items] index into entries_, if that names the item
};

}  // namespace kvik::kv
