// SPDX-License-Identifier: Apache-2.0
// codec/symbol_groups.h: planes that a coder treats as one: small ones of a kind are joined, so
// that their tables and roundings are paid for once. Both sides form the same groups, from the
// sizes, alphabets and contexts of the planes alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codec/tile.h"

namespace kvik::codec {

struct SymbolGroup {
  int32_t alphabet = 2;
  int32_t context = 0;
  bool uniform = false;
  size_t n = 0;            // symbols, at least one
  size_t first_plane = 0;  // the symbols are those of its planes, in order
  size_t planes = 0;
  size_t offset = 0;  // of its joined symbols; not used when it has one plane
};

// Scratch of one thread.
class SymbolGroups {
 public:
  enum class Join { kSameAlphabet, kSameDistribution };
  void Form(std::span<const SymbolPlane> planes, Join join);
  [[nodiscard]] std::span<const SymbolGroup> groups() const { return groups_; }

  // The symbols of groups, those of joined planes copied. For encoders: after Gather.
  void Gather(std::span<const SymbolPlane> planes);
  [[nodiscard]] std::span<const uint8_t> Source(std::span<const SymbolPlane> planes,
                                                const SymbolGroup& group) const;
  // Where to put the symbols of groups; Scatter then copies those of joined planes.
  [[nodiscard]] std::span<uint8_t> Target(std::span<SymbolPlane> planes, const SymbolGroup& group);
  void Scatter(std::span<SymbolPlane> planes) const;

 private:
  // Calls f(plane, where its symbols are in joined_) for every joined plane, in order.
  template <typename F>
  void ForEachJoined(size_t planes, F f) const;

  std::vector<SymbolGroup> groups_;
  std::vector<size_t> group_of_;  // by plane
  std::vector<uint8_t> joined_;
};

}  // namespace kvik::codec
