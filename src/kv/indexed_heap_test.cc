// SPDX-License-Identifier: Apache-2.0
#include "kv/indexed_heap.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>

#include "base/rng.h"

namespace kvik::kv {
namespace {

TEST(IndexedHeap, RandomOperationsAgreeWithAnOrderedSet) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    constexpr size_t kItems = 300;
    IndexedHeap heap(kItems);
    std::set<std::pair<int64_t, uint64_t>> order;  // (key, order); order identifies the item
    std::map<int32_t, std::pair<int64_t, uint64_t>> in;
    for (uint64_t step = 0; step < 5000; ++step) {
      const auto item = static_cast<int32_t>(rng.Below(kItems));
      ASSERT_EQ(heap.Contains(item), in.contains(item));
      if (in.contains(item)) {
        heap.Erase(item);
        order.erase(in[item]);
        in.erase(item);
      } else {
        const auto key = std::pair(rng.Range(-20, 20), step);  // many equal keys
        heap.Push({key.first, key.second, item});
        order.insert(key);
        in[item] = key;
      }
      ASSERT_EQ(heap.size(), order.size());
      ASSERT_EQ(heap.empty(), order.empty());
      if (!order.empty()) {
        ASSERT_EQ(std::pair(heap.least().key, heap.least().order), *order.begin());
        ASSERT_EQ(in[heap.least().item], *order.begin());
      }
    }
    if (seed % 2 == 0) {
      heap.Clear();
      for (const auto& [item, key] : in) {
        ASSERT_FALSE(heap.Contains(item));
        heap.Push({key.first, key.second, item});
      }
    }
    while (!heap.empty()) {
      ASSERT_EQ(std::pair(heap.least().key, heap.least().order), *order.begin());
      order.erase(order.begin());
      heap.Erase(heap.least().item);
    }
    EXPECT_TRUE(order.empty());
  }
}

}  // namespace
}  // namespace kvik::kv
