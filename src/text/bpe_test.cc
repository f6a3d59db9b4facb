// SPDX-License-Identifier: Apache-2.0
#include "text/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "base/rng.h"

namespace kvik::text {
namespace {

struct Merge {
  uint32_t rank;
  Symbol merged;
};
using Table = std::map<std::pair<Symbol, Symbol>, Merge>;

// The definition: the best pair, the leftmost of equals, one at a time.
std::vector<Symbol> NaiveApply(const Table& table, std::vector<Symbol> symbols) {
  while (true) {
    size_t best = symbols.size();
    uint32_t best_rank = UINT32_MAX;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto it = table.find({symbols[i], symbols[i + 1]});
      if (it != table.end() && it->second.rank < best_rank) {
        best = i;
        best_rank = it->second.rank;
      }
    }
    if (best == symbols.size()) {
      return symbols;
    }
    symbols[best] = table.at({symbols[best], symbols[best + 1]}).merged;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

// For random tables (with equal ranks, and pairs that make what other pairs make) and random
// sequences of all lengths around the change of algorithm, the result is the definition's.
TEST(Bpe, EqualsTheDefinition) {
  constexpr uint64_t kSeed = 1;
  SCOPED_TRACE(kSeed);
  Rng rng(kSeed);
  BpeScratch scratch;
  for (int round = 0; round < 300; ++round) {
    const uint64_t letters = 2 + rng.Below(4);
    Table table;
    BpeMerges merges;
    Symbol next = static_cast<Symbol>(letters);
    const size_t count = rng.Below(60);
    for (size_t i = 0; i < count; ++i) {
      const auto left = static_cast<Symbol>(rng.Below(next));
      const auto right = static_cast<Symbol>(rng.Below(next));
      const Merge merge{static_cast<uint32_t>(rng.Below(20)),
                        rng.Below(4) == 0 ? static_cast<Symbol>(rng.Below(next)) : next++};
      table.try_emplace({left, right}, merge);  // the first of equal pairs counts
      merges.Add(left, right, merge.rank, merge.merged);
    }
    EXPECT_EQ(merges.size(), table.size());
    for (const size_t length : {0, 1, 2, 3, 17, 47, 48, 49, 50, 150}) {
      std::vector<Symbol> symbols;
      for (size_t i = 0; i < length; ++i) {
        symbols.push_back(rng.Below(30) == 0 ? kNoSymbol : static_cast<Symbol>(rng.Below(letters)));
      }
      const std::vector<Symbol> expected = NaiveApply(table, symbols);
      merges.Apply(&symbols, &scratch);
      ASSERT_EQ(symbols, expected) << "round " << round << " length " << length;
    }
  }
}

// Doubling merges on a long run of one symbol: a quadratic algorithm would take minutes.
TEST(Bpe, LongRunsOfOneSymbol) {
  BpeMerges merges;
  for (Symbol i = 0; i < 10; ++i) {
    merges.Add(i, i, i, i + 1);
  }
  std::vector<Symbol> symbols(1'000'000, 0);
  BpeScratch scratch;
  merges.Apply(&symbols, &scratch);
  // 10^6 = 976 * 1024 + 512 + 64
  std::vector<Symbol> expected(976, 10);
  expected.push_back(9);
  expected.push_back(6);
  EXPECT_EQ(symbols, expected);
}

}  // namespace
}  // namespace kvik::text
