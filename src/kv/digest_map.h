// SPDX-License-Identifier: Apache-2.0
// kv/digest_map.h: from 64-bit digests to small numbers, in one flat array.
//
// Open addressing with linear probing. The digests are uniform already, so they are their own
// hash. Memory is taken once; no operation allocates. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvik::kv {

class DigestMap {
 public:
  static constexpr int32_t kAbsent = -1;

  // Room for `max_entries`. 32 to 64 bytes an entry.
  explicit DigestMap(size_t max_entries);

  [[nodiscard]] int32_t Find(uint64_t digest) const {
    for (size_t i = Home(digest);; i = Next(i)) {
      if (cells_[i].value == kAbsent || cells_[i].digest == digest) {
        return cells_[i].value;
      }
    }
  }
  // REQUIRES: absent, size() < max_entries, value >= 0.
  void Insert(uint64_t digest, int32_t value);
  // REQUIRES: present.
  void Erase(uint64_t digest);

  [[nodiscard]] size_t size() const { return size_; }

 private:
  struct Cell {
    uint64_t digest = 0;
    int32_t value = kAbsent;
  };
  [[nodiscard]] size_t Home(uint64_t digest) const { return digest & mask_; }
  [[nodiscard]] size_t Next(size_t i) const { return (i + 1) & mask_; }

  size_t max_entries_;
  size_t mask_;
  std::vector<Cell> cells_;  // [a power of two, at least twice max_entries]
  size_t size_ = 0;
};

}  // namespace kvik::kv
