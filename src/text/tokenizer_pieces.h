// SPDX-License-Identifier: Apache-2.0
// text/tokenizer_pieces.h: strings that own their bytes in one arena, and a map from string to
// number, both far smaller and faster than node-based containers at 100,000s of pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvik::text {

// Append-only. Views stay valid while nothing is added.
class PieceList {
 public:
  void Add(std::string_view piece) {
    bytes_.append(piece);
    ends_.push_back(bytes_.size());
  }
  [[nodiscard]] size_t size() const { return ends_.size(); }
  // REQUIRES: i < size().
  [[nodiscard]] std::string_view operator[](size_t i) const {
    const size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(bytes_).substr(begin, ends_[i] - begin);
  }

 private:
  std::string bytes_;
  std::vector<size_t> ends_;
};

// From the strings of a PieceList to their indices.
class PieceMap {
 public:
  // `pieces` must outlive the map and not move; it may grow.
  explicit PieceMap(const PieceList* pieces, size_t expected = 0);

  // Adds pieces[index], or gives an equal piece this index.
  void Put(uint32_t index);
  [[nodiscard]] std::optional<uint32_t> Find(std::string_view piece) const;

 private:
  struct Slot {
    uint32_t hash = 0;
    uint32_t index = kEmpty;
  };
  static constexpr uint32_t kEmpty = UINT32_MAX;

  void Resize(size_t num_slots);

  const PieceList* pieces_;
  std::vector<Slot> slots_;  // a power of two; linear probing
  size_t size_ = 0;
};

}  // namespace kvik::text
