// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/float16.h"
#include "base/isa.h"
#include "base/memory_info.h"
#include "base/result.h"
#include "base/rng.h"
#include "base/thread_pool.h"

namespace kvik {
namespace {

Result<int> Half(int v) {
  if (v % 2 != 0) {
    return Err(ErrorCode::kInvalidInput, "%d is odd", v);
  }
  return v / 2;
}

Result<int> Quarter(int v) {
  KVIK_ASSIGN(const int half, Half(v));
  return Half(half);
}

TEST(Result, CarriesValueOrError) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).error().message, "3 is odd");
  EXPECT_EQ(Quarter(6).error().Wrap("here").message, "here: 3 is odd");
}

TEST(Float16, EveryHalfAndBf16SurvivesARoundTrip) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const F16 h{static_cast<uint16_t>(i)};
    if (!std::isnan(ToFloat(h))) {
      EXPECT_EQ(ToF16(ToFloat(h)).bits, h.bits);
    }
    const Bf16 b{static_cast<uint16_t>(i)};
    if (!std::isnan(ToFloat(b))) {
      EXPECT_EQ(ToBf16(ToFloat(b)).bits, b.bits);
    }
  }
  EXPECT_TRUE(std::isnan(ToFloat(ToBf16(NAN))));
  EXPECT_TRUE(std::isnan(ToFloat(ToF16(NAN))));
}

TEST(Float16, RoundsToNearestEven) {
  for (uint32_t i = 0; i < 0x7BFF; ++i) {
    const float lo = ToFloat(F16{static_cast<uint16_t>(i)});
    const float hi = ToFloat(F16{static_cast<uint16_t>(i + 1)});
    const float mid = lo + (hi - lo) / 2;
    EXPECT_EQ(ToF16(mid).bits, (i % 2 == 0) ? i : i + 1);
    EXPECT_EQ(ToF16(std::nextafterf(mid, hi)).bits, i + 1);
  }
}

TEST(Rng, StreamsAreIndependentAndSeekable) {
  Rng a(1, 0);
  Rng b(1, 1);
  EXPECT_NE(a.Next(), b.Next());
  const uint64_t second = a.Next();
  a.SeekTo(1);
  EXPECT_EQ(a.Next(), second);
}

TEST(ThreadPool, RunsEveryIndexOnce) {
  for (int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 2000; ++round) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(round % 17));
      pool.ParallelFor(hits.size(), [&](size_t i, int thread) {
        ASSERT_LT(thread, threads);
        ++hits[i];
      });
      for (auto& h : hits) {
        ASSERT_EQ(h.load(), 1);
      }
    }
  }
}

TEST(ThreadPool, RunsEveryIndexOfUnequalRangesOnce) {
  Rng rng(1);
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 500; ++round) {
      std::vector<size_t> ends(static_cast<size_t>(threads));
      size_t end = 0;
      for (size_t& e : ends) {
        e = end += rng.Below(4) * rng.Below(8);  // often empty
      }
      std::vector<std::atomic<int>> hits(end);
      pool.ParallelForRanges(ends, [&](size_t i, int) { ++hits[i]; });
      for (auto& h : hits) {
        ASSERT_EQ(h.load(), 1);
      }
    }
  }
}

TEST(ThreadPool, OthersTakeWhatAHeldUpThreadHasNotStarted) {
  ThreadPool pool(2);
  std::atomic<int> done{0};
  // Index 0 ends only when all others are done, half of which are in its thread's range.
  pool.ParallelFor(10, [&](size_t i, int) {
    if (i == 0) {
      while (done.load() != 9) {
        std::this_thread::yield();
      }
    } else {
      ++done;
    }
  });
  EXPECT_EQ(done.load(), 9);
}

TEST(Isa, ScalarIsAlwaysThereAndNamesParse) {
  for (Isa isa : SupportedIsas()) {
    EXPECT_EQ(ParseIsa(IsaName(isa)), isa);
  }
  EXPECT_TRUE(IsaSupported(Isa::kScalar));
  EXPECT_FALSE(ParseIsa("sse9"));
}

TEST(MemoryInfo, SaysSomethingPlausible) {
  const std::optional<size_t> available = AvailableMemoryBytes();
  ASSERT_TRUE(available);
  EXPECT_GT(*available, size_t{1} << 20);
  EXPECT_LT(*available, size_t{1} << 50);
}

}  // namespace
}  // namespace kvik
