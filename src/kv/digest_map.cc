// SPDX-License-Identifier: Apache-2.0
#include "kv/digest_map.h"

#include <bit>

#include "base/check.h"

namespace kvik::kv {

DigestMap::DigestMap(size_t max_entries)
    : max_entries_(max_entries), mask_(std::bit_ceil(2 * max_entries + 2) - 1), cells_(mask_ + 1) {}

void DigestMap::Insert(uint64_t digest, int32_t value) {
  KVIK_CHECK(size_ < max_entries_ && value >= 0);
  size_t i = Home(digest);
  while (cells_[i].value != kAbsent) {
    KVIK_CHECK(cells_[i].digest != digest);
    i = Next(i);
  }
  cells_[i] = Cell{digest, value};
  ++size_;
}

void DigestMap::Erase(uint64_t digest) {
  size_t hole = Home(digest);
  while (cells_[hole].digest != digest || cells_[hole].value == kAbsent) {
    KVIK_CHECK(cells_[hole].value != kAbsent);
    hole = Next(hole);
  }
  // What was pushed past the hole on its way from home moves back, so that probes need no marks.
  for (size_t i = Next(hole); cells_[i].value != kAbsent; i = Next(i)) {
    const size_t home = Home(cells_[i].digest);
    if (((i - home) & mask_) >= ((i - hole) & mask_)) {
      cells_[hole] = cells_[i];
      hole = i;
    }
  }
  cells_[hole] = Cell{};
  --size_;
}

}  // namespace kvik::kv
