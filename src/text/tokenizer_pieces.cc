// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_pieces.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace kvik::text {
namespace {

// Multiply and fold, eight bytes at a time: pieces are short.
uint32_t Hash(std::string_view s) {
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15ULL;
  const auto mix = [](uint64_t h, uint64_t word) {
    const auto product = static_cast<unsigned __int128>(h ^ word) * kMultiplier;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  };
  uint64_t h = s.size() * 0xD6E8FEB86659FD93ULL + 1;
  while (s.size() > 8) {
    uint64_t word = 0;
    std::memcpy(&word, s.data(), 8);
    h = mix(h, word);
    s.remove_prefix(8);
  }
  uint64_t word = 0;
  if (!s.empty()) {
    std::memcpy(&word, s.data(), s.size());
  }
  h = mix(h, word);
  return static_cast<uint32_t>(h ^ (h >> 32));
}

}  // namespace

PieceMap::PieceMap(const PieceList* pieces, size_t expected) : pieces_(pieces) {
  Resize(std::bit_ceil(std::max<size_t>(16, expected * 2)));
}

void PieceMap::Resize(size_t num_slots) {
  const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(num_slots));
  size_ = 0;
  for (const Slot& slot : old) {
    if (slot.index != kEmpty) {
      Put(slot.index);
    }
  }
}

void PieceMap::Put(uint32_t index) {
  if ((size_ + 1) * 2 > slots_.size()) {
    Resize(slots_.size() * 2);
  }
  const std::string_view piece = (*pieces_)[index];
  const uint32_t hash = Hash(piece);
  size_t i = hash & (slots_.size() - 1);
  for (; slots_[i].index != kEmpty; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].hash == hash && (*pieces_)[slots_[i].index] == piece) {
      slots_[i].index = index;
      return;
    }
  }
  slots_[i] = {hash, index};
  ++size_;
}

std::optional<uint32_t> PieceMap::Find(std::string_view piece) const {
  const uint32_t hash = Hash(piece);
  for (size_t i = hash & (slots_.size() - 1); slots_[i].index != kEmpty;
       i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].hash == hash && (*pieces_)[slots_[i].index] == piece) {
      return slots_[i].index;
    }
  }
  return std::nullopt;
}

}  // namespace kvik::text
