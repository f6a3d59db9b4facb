// SPDX-License-Identifier: Apache-2.0
// Two ways to the same result. Words are short: there a scan of all pairs for the best one beats
// any structure, although it is quadratic. Longer sequences (a text without spaces) go through a
// linked list and a heap of candidates; a candidate whose pair is gone is dropped when it comes up.
#include "text/bpe.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace kvik::text {
namespace {
constexpr size_t kShortSymbols = 48;
constexpr uint32_t kNoRank = UINT32_MAX;
constexpr uint32_t kEnd = UINT32_MAX;
}  // namespace

BpeMerges::BpeMerges(size_t expected_merges) {
  Resize(std::bit_ceil(std::max<size_t>(16, expected_merges * 5 / 3 + 1)));
}

void BpeMerges::Resize(size_t num_slots) {
  std::vector<Slot> old = std::move(slots_);
  slots_ = std::vector<Slot>(num_slots);
  shift_ = 64 - std::countr_zero(num_slots);
  size_ = 0;
  for (const Slot& slot : old) {
    if (slot.key != kEmpty) {
      Add(static_cast<Symbol>(slot.key >> 32), static_cast<Symbol>(slot.key), slot.rank,
          slot.merged);
    }
  }
}

void BpeMerges::Add(Symbol left, Symbol right, uint32_t rank, Symbol merged) {
  const uint64_t key = static_cast<uint64_t>(left) << 32 | right;
  KVIK_CHECK(left != kNoSymbol && right != kNoSymbol);
  if ((size_ + 1) * 5 > slots_.size() * 3) {
    Resize(slots_.size() * 2);
  }
  size_t i = Home(key);
  while (slots_[i].key != kEmpty) {
    if (slots_[i].key == key) {
      return;
    }
    i = (i + 1) & (slots_.size() - 1);
  }
  slots_[i] = {key, rank, merged};
  ++size_;
}

const BpeMerges::Slot* BpeMerges::Find(Symbol left, Symbol right) const {
  const uint64_t key = static_cast<uint64_t>(left) << 32 | right;
  size_t i = Home(key);
  while (slots_[i].key != key) {
    if (slots_[i].key == kEmpty) {
      return nullptr;
    }
    i = (i + 1) & (slots_.size() - 1);
  }
  // Two kNoSymbol look like an empty slot.
  return key == kEmpty ? nullptr : &slots_[i];
}

void BpeMerges::Apply(std::vector<Symbol>* symbols, BpeScratch* scratch) const {
  KVIK_CHECK(symbols->size() < kEnd);
  if (symbols->size() <= kShortSymbols) {
    ApplyShort(symbols);
  } else {
    ApplyLong(symbols, scratch);
  }
}

void BpeMerges::ApplyShort(std::vector<Symbol>* symbols) const {
  size_t count = symbols->size();
  if (count < 2) {
    return;
  }
  Symbol* symbol = symbols->data();
  // Of the pair (i, i + 1).
  uint32_t ranks[kShortSymbols];
  Symbol merged[kShortSymbols];
  const auto look_up = [&](size_t i) {
    const Slot* slot = Find(symbol[i], symbol[i + 1]);
    ranks[i] = slot != nullptr ? slot->rank : kNoRank;
    merged[i] = slot != nullptr ? slot->merged : 0;
  };
  for (size_t i = 0; i + 1 < count; ++i) {
    look_up(i);
  }
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i] < ranks[best]) {
        best = i;
      }
    }
    if (ranks[best] == kNoRank) {
      break;
    }
    symbol[best] = merged[best];
    std::copy(symbol + best + 2, symbol + count, symbol + best + 1);
    std::copy(ranks + best + 1, ranks + count - 1, ranks + best);
    std::copy(merged + best + 1, merged + count - 1, merged + best);
    --count;
    if (best + 1 < count) {
      look_up(best);
    }
    if (best > 0) {
      look_up(best - 1);
    }
  }
  symbols->resize(count);
}

void BpeMerges::ApplyLong(std::vector<Symbol>* symbols, BpeScratch* scratch) const {
  auto& nodes = scratch->nodes;
  auto& heap = scratch->heap;
  const auto count = static_cast<uint32_t>(symbols->size());
  nodes.clear();
  heap.clear();
  for (uint32_t i = 0; i < count; ++i) {
    nodes.push_back({(*symbols)[i], i == 0 ? kEnd : i - 1, i + 1 == count ? kEnd : i + 1});
  }
  const auto later = [](const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) {
    return a.order > b.order;
  };
  const auto candidate = [&](uint32_t left, std::vector<BpeScratch::Candidate>* out) {
    const Symbol a = nodes[left].symbol;
    const Symbol b = nodes[nodes[left].next].symbol;
    const Slot* slot = Find(a, b);
    if (slot == nullptr) {
      return false;
    }
    out->push_back({static_cast<uint64_t>(slot->rank) << 32 | left, a, b});
    return true;
  };
  for (uint32_t i = 0; i + 1 < count; ++i) {
    candidate(i, &heap);
  }
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const BpeScratch::Candidate best = heap.back();
    heap.pop_back();
    const auto left = static_cast<uint32_t>(best.order);
    const uint32_t right = nodes[left].next;
    // A node that was swallowed is kNoSymbol and so equals no candidate's left.
    if (nodes[left].symbol != best.left || right == kEnd || nodes[right].symbol != best.right) {
      continue;
    }
    nodes[left].symbol = Find(best.left, best.right)->merged;
    nodes[left].next = nodes[right].next;
    if (nodes[right].next != kEnd) {
      nodes[nodes[right].next].previous = left;
      if (candidate(left, &heap)) {
        std::push_heap(heap.begin(), heap.end(), later);
      }
    }
    nodes[right].symbol = kNoSymbol;
    if (nodes[left].previous != kEnd && candidate(nodes[left].previous, &heap)) {
      std::push_heap(heap.begin(), heap.end(), later);
    }
  }
  symbols->clear();
  for (uint32_t i = 0; i != kEnd; i = nodes[i].next) {
    symbols->push_back(nodes[i].symbol);
  }
}

}  // namespace kvik::text
