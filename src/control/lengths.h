// SPDX-License-Identifier: Apache-2.0
// control/lengths.h: the prompt lengths at which ratios and speeds are tabulated. A short prompt
// has another best profile than a long one, because what a transfer costs before its first byte
// does not shrink with it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvik::control {

inline constexpr std::array<int32_t, 5> kLengths = {128, 512, 1024, 4096, 6144};  // tokens
inline constexpr size_t kNumLengths = kLengths.size();

// The tabulated length nearest in ratio; the shorter one on a tie.
constexpr size_t LengthBucket(int64_t tokens) {
  size_t bucket = 0;
  while (bucket + 1 < kNumLengths &&
         tokens * tokens > int64_t{kLengths[bucket]} * kLengths[bucket + 1]) {
    ++bucket;
  }
  return bucket;
}

}  // namespace kvik::control
