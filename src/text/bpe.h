// SPDX-License-Identifier: Apache-2.0
// text/bpe.h: byte pair encoding over numbered symbols.
//
// What a symbol is (a byte, a character, a piece) is the caller's: here are only numbers, and a
// table that says which two make which third and how early.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvik::text {

using Symbol = uint32_t;
// Merges with nothing.
inline constexpr Symbol kNoSymbol = UINT32_MAX;

// Working memory of one encoding, kept from word to word.
struct BpeScratch {
  struct Node {
    Symbol symbol;
    uint32_t previous;
    uint32_t next;
  };
  // A pair that was there when the entry was made.
  struct Candidate {
    uint64_t order;  // rank << 32 | position: lowest rank first, then leftmost
    Symbol left;
    Symbol right;
  };
  std::vector<Node> nodes;
  std::vector<Candidate> heap;
};

// Thread-compatible; immutable use is thread-safe.
class BpeMerges {
 public:
  explicit BpeMerges(size_t expected_merges = 0);

  // Of equal pairs the first added counts. REQUIRES: neither is kNoSymbol.
  void Add(Symbol left, Symbol right, uint32_t rank, Symbol merged);

  // Merges in place, always the lowest rank first and of equal ranks the leftmost, until no
  // adjacent pair is in the table. O(n log n). REQUIRES: fewer than 2^32 - 1 symbols.
  void Apply(std::vector<Symbol>* symbols, BpeScratch* scratch) const;

  [[nodiscard]] size_t size() const { return size_; }

 private:
  // Open addressing, linear probing, at most 60 % full.
  struct Slot {
    uint64_t key = kEmpty;  // left << 32 | right
    uint32_t rank = 0;
    Symbol merged = 0;
  };
  static constexpr uint64_t kEmpty = UINT64_MAX;

  [[nodiscard]] const Slot* Find(Symbol left, Symbol right) const;
  void Resize(size_t num_slots);
  [[nodiscard]] size_t Home(uint64_t key) const {
    return static_cast<size_t>((key * 0x9E3779B97F4A7C15ULL) >> shift_);
  }
  void ApplyShort(std::vector<Symbol>* symbols) const;
  void ApplyLong(std::vector<Symbol>* symbols, BpeScratch* scratch) const;

  std::vector<Slot> slots_;  // a power of two
  int shift_ = 0;
  size_t size_ = 0;
};

}  // namespace kvik::text
