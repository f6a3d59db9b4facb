// SPDX-License-Identifier: Apache-2.0
// base/fnv.h: FNV-1a of short names. Not for content: blocks and weights are hashed with XXH3.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvik {

constexpr uint64_t Fnv1a(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char c : text) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3ULL;
  }
  return hash;
}

}  // namespace kvik
