// SPDX-License-Identifier: Apache-2.0
// kv/ghost_map.h: facts of the contents that were evicted last, to know them when they return.
//
// Without it a cache would learn only from what it kept, and call short-lived whatever it evicts
// early. Memory is bounded: the last `capacity` additions are known. Thread-compatible.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/check.h"

namespace kvik::kv {

template <typename T>
class GhostMap {
 public:
  // REQUIRES: 1 <= capacity < 2^31.
  explicit GhostMap(size_t capacity) : capacity_(capacity), table_(std::bit_ceil(2 * capacity), 0) {
    KVIK_CHECK(capacity >= 1 && capacity < (size_t{1} << 31));
    ring_.reserve(capacity);
  }

  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] size_t capacity() const { return capacity_; }

  // Replaces what was known of this content; forgets the oldest addition when full. `content` is a
  // digest: its bits are as good as random.
  void Add(uint64_t content, const T& value) {
    (void)Take(content);
    if (ring_.size() < capacity_) {
      ring_.push_back(Entry{content, value, true});
      Link(ring_.size() - 1);
    } else {
      if (ring_[next_].live) {
        Unlink(Find(ring_[next_].content));
      }
      ring_[next_] = Entry{content, value, true};
      Link(next_);
      next_ = (next_ + 1) % capacity_;
    }
  }
  // What was known of this content, which is then forgotten.
  std::optional<T> Take(uint64_t content) {
    const size_t at = Find(content);
    if (table_[at] == 0) {
      return std::nullopt;
    }
    Entry& entry = ring_[table_[at] - 1];
    entry.live = false;
    Unlink(at);
    return entry.value;
  }

 private:
  struct Entry {
    uint64_t content;
    T value;
    bool live;
  };

  [[nodiscard]] size_t Home(uint64_t content) const {
    return static_cast<size_t>(content) & (table_.size() - 1);
  }
  [[nodiscard]] size_t Next(size_t at) const { return (at + 1) & (table_.size() - 1); }
  // Where the content is in the table, or the empty place it would take. At most half is taken.
  [[nodiscard]] size_t Find(uint64_t content) const {
    size_t at = Home(content);
    while (table_[at] != 0 && ring_[table_[at] - 1].content != content) {
      at = Next(at);
    }
    return at;
  }
  void Link(size_t slot) {
    table_[Find(ring_[slot].content)] = static_cast<uint32_t>(slot + 1);
    ++size_;
  }
  // Moves later entries of the same chain back, so that none hides behind the empty place.
  void Unlink(size_t at) {
    --size_;
    size_t empty = at;
    for (size_t i = Next(at); table_[i] != 0; i = Next(i)) {
      const size_t home = Home(ring_[table_[i] - 1].content);
      const size_t mask = table_.size() - 1;
      if (((i - home) & mask) >= ((i - empty) & mask)) {
        table_[empty] = table_[i];
        empty = i;
      }
    }
    table_[empty] = 0;
  }

  size_t capacity_;
  std::vector<Entry> ring_;      // [<= capacity] in order of addition, from next_ when full
  size_t next_ = 0;              // the oldest, when full
  std::vector<uint32_t> table_;  // open addressing: index into ring_ + 1, 0 is empty
  size_t size_ = 0;
};

}  // namespace kvik::kv
