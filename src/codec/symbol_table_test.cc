// SPDX-License-Identifier: Apache-2.0
#include "codec/symbol_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "base/rng.h"
#include "codec/kernels/coder_kernels.h"

namespace kvik::codec {
namespace {

double Cost(const std::vector<uint64_t>& counts, const std::vector<uint16_t>& freq, uint32_t bits) {
  double cost = 0;
  for (size_t s = 0; s < counts.size(); ++s) {
    cost += counts[s] == 0
                ? 0
                : static_cast<double>(counts[s]) * (bits - std::log2(static_cast<double>(freq[s])));
  }
  return cost;
}

TEST(SymbolTable, FrequenciesAddUpAndNoSingleMoveBeatsThem) {
  constexpr uint64_t kSeed = 50;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  Rng rng(kSeed);
  for (int trial = 0; trial < 300; ++trial) {
    const uint32_t bits = trial % 2 == 0 ? 8 : 12;
    const bool floor = rng.Below(2) == 0;
    std::vector<uint64_t> counts(2 + rng.Below(trial % 3 == 0 ? 250 : 31));
    for (auto& count : counts) {
      count = rng.Below(4) == 0 ? 0 : rng.Next() >> (24 + rng.Below(40));
    }
    counts[0] += 1;
    std::vector<uint16_t> freq(counts.size());
    NormalizeCounts(counts, bits, floor, freq);
    ASSERT_EQ(std::accumulate(freq.begin(), freq.end(), 0U), 1U << bits);
    for (size_t s = 0; s < counts.size(); ++s) {
      ASSERT_EQ(freq[s] == 0, !floor && counts[s] == 0);
    }
    const double cost = Cost(counts, freq, bits);
    for (int attempt = 0; attempt < 50; ++attempt) {
      const size_t from = rng.Below(freq.size());
      const size_t to = rng.Below(freq.size());
      if (from == to || freq[from] < 2 || freq[to] == 0) {
        continue;
      }
      std::vector<uint16_t> moved = freq;
      --moved[from];
      ++moved[to];
      // Within what the rounding of logarithms to slopes may miss.
      ASSERT_GE(Cost(counts, moved, bits), cost * (1 - 2e-3)) << "trial " << trial;
    }
  }
}

TEST(SymbolTable, WithoutCountsAllSymbolsAreAlike) {
  std::vector<uint16_t> freq(16);
  NormalizeCounts(std::vector<uint64_t>(16), 8, false, freq);
  EXPECT_EQ(freq, std::vector<uint16_t>(16, 16));
}

TEST(SymbolTable, LogarithmsAndCostsAreThoseOfTheMathematics) {
  for (uint32_t v = 1; v <= 4096; ++v) {
    ASSERT_NEAR(Log2Cost(v) / 65536.0, std::log2(v), 2.0 / 65536) << v;
  }
  const std::vector<uint32_t> counts = {10, 0, 5};
  const std::vector<uint16_t> freq = {128, 64, 64};
  EXPECT_EQ(CodingCost(counts, freq, 8), (10 + 2 * 5) * kCostBit);
  EXPECT_EQ(CodingCost(counts, std::vector<uint16_t>{192, 64, 0}, 8), kNoCost);
  const std::vector<uint32_t> many = {1000000, 300000, 7, 0, 123456};
  double entropy = 0;
  for (const uint32_t count : many) {
    entropy += count == 0 ? 0 : count * std::log2(1423463.0 / count);
  }
  EXPECT_NEAR(static_cast<double>(EntropyCost(many)) / kCostBit, entropy, 1423463.0 / 1024);
}

TEST(SymbolTable, CoarseCountsAreWithinAnEighth) {
  constexpr uint64_t kTotal = 1 << kCoarseScale;
  EXPECT_EQ(CoarseCode(0, kTotal), 0U);
  for (uint64_t count = 1; count <= kTotal; ++count) {
    const uint32_t code = CoarseCode(count, kTotal);
    ASSERT_GT(code, 0U);
    ASSERT_LT(code, 1U << kCoarseBits);
    const auto value = static_cast<double>(CoarseCount(code));
    ASSERT_NEAR(value, static_cast<double>(count), static_cast<double>(count) / 8) << count;
  }
  EXPECT_EQ(CoarseCode(1, kTotal * 100), 1U) << "what is there is never nothing";
}

TEST(SymbolTable, EveryIsaCountsAlike) {
  constexpr uint64_t kSeed = 51;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  Rng rng(kSeed);
  for (int trial = 0; trial < 120; ++trial) {
    const int alphabets[] = {2, 3, 7, 8, 9, 16, 17, 100, 256};
    const int alphabet = alphabets[rng.Below(std::size(alphabets))];
    std::vector<uint8_t> symbols(rng.Below(trial % 4 == 0 ? 70000 : 6000));
    // Nearly all within 16 neighbours, or anywhere.
    const uint64_t first = rng.Below(static_cast<uint64_t>(alphabet));
    const uint64_t width = std::min<uint64_t>(16, static_cast<uint64_t>(alphabet) - first);
    const bool anywhere = rng.Below(3) == 0;
    std::vector<uint32_t> expected(256);
    for (auto& symbol : symbols) {
      symbol = static_cast<uint8_t>(anywhere || rng.Below(200) == 0
                                        ? rng.Below(static_cast<uint64_t>(alphabet))
                                        : first + rng.Below(width));
      ++expected[symbol];
    }
    for (const Isa isa : SupportedIsas()) {
      std::vector<uint32_t> counts(256, 77);
      CoderKernelsOf(isa).histogram(symbols.data(), symbols.size(), alphabet, counts.data());
      ASSERT_EQ(counts, expected) << IsaName(isa) << ", alphabet " << alphabet << ", trial "
                                  << trial;
    }
  }
}

}  // namespace
}  // namespace kvik::codec
