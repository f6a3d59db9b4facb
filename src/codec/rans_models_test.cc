// SPDX-License-Identifier: Apache-2.0
#include "codec/rans_models.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <thread>
#include <vector>

#include "base/rng.h"

namespace kvik::codec {
namespace {

// Counts of some contexts; the last third of an alphabet never came.
SideTensor MadeCounts(int32_t contexts, int32_t width, uint64_t seed) {
  Rng rng(seed);
  SideTensor counts;
  counts.shape = {contexts, width};
  for (int32_t i = 0; i < contexts * width; ++i) {
    counts.values.push_back(i % width < width * 2 / 3 ? static_cast<float>(rng.Below(1000)) : 0.0F);
  }
  return counts;
}

TEST(StaticTables, ModelsCodeEverySymbolOfAnAlphabet) {
  const StaticTables tables(MadeCounts(3, 100, 1));
  for (const int32_t alphabet : {2, 3, 16, 17, 32, 33, 99, 100}) {
    const StaticModels* const models = tables.Find(1, alphabet);
    ASSERT_NE(models, nullptr);
    ASSERT_EQ(models->freq12.size(), static_cast<size_t>(alphabet));
    EXPECT_EQ(std::accumulate(models->freq12.begin(), models->freq12.end(), 0), 1 << kRans12Bits);
    EXPECT_EQ(std::accumulate(models->freq8.begin(), models->freq8.end(), 0), 1 << kRans8Bits);
    EXPECT_EQ(models->freq8.size(), static_cast<size_t>(models->window.size()));
    EXPECT_EQ(models->window.escape, alphabet > kRans8Symbols);
    for (int32_t s = 0; s < alphabet; ++s) {
      const auto i = static_cast<size_t>(s);
      EXPECT_GE(models->freq12[i], 1);
      EXPECT_EQ(models->model12.freq[i], models->freq12[i]);
      EXPECT_EQ(models->model12.start[i],
                std::accumulate(models->freq12.begin(), models->freq12.begin() + s, 0));
    }
    EXPECT_EQ(models->model12.size, static_cast<uint32_t>(alphabet));
    EXPECT_EQ(models->model8.size, models->window.size());
  }
}

TEST(StaticTables, KnowTheirContextsAndAlphabets) {
  const StaticTables tables(MadeCounts(3, 40, 2));
  EXPECT_EQ(tables.Find(-1, 16), nullptr);
  EXPECT_EQ(tables.Find(3, 16), nullptr);
  EXPECT_EQ(tables.Find(0, 41), nullptr);
  EXPECT_NE(tables.Find(2, 40), nullptr);
  EXPECT_EQ(tables.Find(2, 40), tables.Find(2, 40));
  EXPECT_EQ(StaticTables().Find(0, 2), nullptr);
}

TEST(StaticTables, AllThreadsGetTheSameModels) {
  const StaticTables tables(MadeCounts(2, 64, 3));
  constexpr size_t kThreads = 4;
  std::array<std::vector<const StaticModels*>, kThreads> found;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int32_t alphabet = 2; alphabet <= 64; ++alphabet) {
        found[t].push_back(tables.Find(alphabet % 2, alphabet));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (size_t t = 1; t < kThreads; ++t) {
    EXPECT_EQ(found[t], found[0]);
  }
}

TEST(RansTable, ComesBackFromItsBytes) {
  constexpr uint64_t kSeed = 4;
  SCOPED_TRACE(kSeed);
  Rng rng(kSeed);
  for (int round = 0; round < 200; ++round) {
    const int alphabet = static_cast<int>(2 + rng.Below(255));
    const int width = static_cast<int>(2 + rng.Below(static_cast<uint64_t>(alphabet) - 1));
    const RansWindow window{
        static_cast<int>(rng.Below(static_cast<uint64_t>(alphabet - width) + 1)), width, false};
    std::vector<uint32_t> codes;
    for (int i = 0; i < width; ++i) {
      codes.push_back(static_cast<uint32_t>(i == 0 ? 1 + rng.Below(63) : rng.Below(64)));
    }
    codes.back() |= 1;
    std::vector<std::byte> bytes;
    ByteWriter out(bytes);
    WriteRansTable(RansMode::kCoarse12, window, alphabet, codes, out);
    EXPECT_EQ(bytes.size(), RansTableBytes(RansMode::kCoarse12, window, alphabet));
    std::vector<uint16_t> written(256);
    ASSERT_TRUE(RansFrequencies(RansMode::kCoarse12, window, codes, written));
    std::vector<uint16_t> read(256);
    ByteReader in(bytes);
    const auto got = ReadRansTable(RansMode::kCoarse12, alphabet, in, read);
    ASSERT_TRUE(got.has_value()) << got.error().message;
    EXPECT_EQ(got->first, window.first);
    EXPECT_EQ(got->width, window.width);
    EXPECT_EQ(in.left(), 0U);
    EXPECT_EQ(read, written);
    EXPECT_EQ(std::accumulate(read.begin(), read.end(), 0), 1 << kRans12Bits);
  }
}

}  // namespace
}  // namespace kvik::codec
