// SPDX-License-Identifier: Apache-2.0
#include "kv/ghost_map.h"

#include <gtest/gtest.h>

#include <deque>
#include <utility>

#include "base/rng.h"

namespace kvik::kv {
namespace {

TEST(GhostMap, KnowsTheLastAdditionsAndEachOnce) {
  GhostMap<int> map(3);
  map.Add(10, 1);
  map.Add(20, 2);
  map.Add(10, 3);  // replaces
  EXPECT_EQ(map.size(), 2U);
  EXPECT_EQ(map.Take(10), 3);
  EXPECT_EQ(map.Take(10), std::nullopt);
  map.Add(30, 4);
  map.Add(40, 5);
  map.Add(50, 6);  // 20 is four additions ago
  EXPECT_EQ(map.Take(20), std::nullopt);
  EXPECT_EQ(map.Take(30), 4);
  EXPECT_EQ(map.Take(40), 5);
  EXPECT_EQ(map.Take(50), 6);
  EXPECT_EQ(map.size(), 0U);
}

TEST(GhostMap, RandomOperationsAgreeWithANaiveQueue) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    const size_t capacity = 1 + rng.Below(50);
    GhostMap<uint64_t> map(capacity);
    struct Addition {
      uint64_t content;
      uint64_t value;
      bool live;
    };
    std::deque<Addition> additions;
    const auto take = [&](uint64_t content) -> std::optional<uint64_t> {
      for (Addition& a : additions) {
        if (a.live && a.content == content) {
          a.live = false;
          return a.value;
        }
      }
      return std::nullopt;
    };
    for (uint64_t step = 0; step < 3000; ++step) {
      // Few values, and close together: long chains in the table.
      const uint64_t content = rng.Below(3) * 1'000'000'007 + rng.Below(2 * capacity);
      if (rng.Below(2) == 0) {
        map.Add(content, step);
        take(content);
        additions.push_back({content, step, true});
        if (additions.size() > capacity) {
          additions.pop_front();
        }
      } else {
        ASSERT_EQ(map.Take(content), take(content));
      }
      size_t live = 0;
      for (const Addition& a : additions) {
        live += a.live ? 1 : 0;
      }
      ASSERT_EQ(map.size(), live);
      ASSERT_LE(map.size(), capacity);
    }
  }
}

}  // namespace
}  // namespace kvik::kv
