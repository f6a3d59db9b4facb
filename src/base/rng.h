// SPDX-License-Identifier: Apache-2.0
// base/rng.h: counter-based random numbers. Draw n of stream s under seed k is a pure function
// of (k, s, n), so results do not depend on threads, batch or what other streams drew.
#pragma once

#include <cstdint>

#include "base/check.h"

namespace kvik {

class Rng {
 public:
  explicit Rng(uint64_t seed, uint64_t stream = 0) : key_(Mix(seed ^ Mix(stream + kGolden))) {}

  // Uniform over all 64-bit values.
  uint64_t Next() { return Mix(key_ + kGolden * ++counter_); }
  // Uniform in [0, 1), 53 random bits.
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }
  // Uniform in [0, n). REQUIRES: n > 0.
  uint64_t Below(uint64_t n) {
    KVIK_CHECK(n > 0);
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * n) >> 64);
  }
  // Uniform in [lo, hi]. REQUIRES: lo <= hi.
  int64_t Range(int64_t lo, int64_t hi) {
    return lo + static_cast<int64_t>(Below(static_cast<uint64_t>(hi - lo) + 1));
  }
  // How many numbers were drawn; SeekTo(n) makes the next draw number n + 1.
  [[nodiscard]] uint64_t counter() const { return counter_; }
  void SeekTo(uint64_t counter) { counter_ = counter; }

 private:
  static constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ULL;
  // The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
  static uint64_t Mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  uint64_t key_;
  uint64_t counter_ = 0;
};

}  // namespace kvik
