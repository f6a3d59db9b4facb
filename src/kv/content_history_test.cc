// SPDX-License-Identifier: Apache-2.0
#include "kv/content_history.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>

#include "base/rng.h"

namespace kvik::kv {
namespace {

// A list in order of use, newest first, whose first entries are the shadow.
TEST(ContentHistory, RandomOperationsAgreeWithANaiveList) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    constexpr size_t kShadow = 5;
    constexpr size_t kMax = 12;
    ContentHistory history(kShadow, kMax);
    std::map<uint64_t, int32_t> slots;
    std::list<uint64_t> order;
    // A shadow that lost members fills up with what is used from then on, not with ghosts.
    std::list<uint64_t> shadow;
    const auto use = [&](uint64_t digest) {
      order.remove(digest);
      order.push_front(digest);
      shadow.remove(digest);
      shadow.push_front(digest);
      if (shadow.size() > kShadow) {
        shadow.pop_back();
      }
    };
    for (int step = 0; step < 3000; ++step) {
      const uint64_t digest = 1 + rng.Below(30);
      const auto known = slots.find(digest);
      const uint64_t what = rng.Below(10);
      if (known == slots.end()) {
        ASSERT_EQ(history.Find(digest), ContentHistory::kNoSlot);
        if (history.full()) {
          const int32_t oldest = history.Oldest();
          if (oldest == ContentHistory::kNoSlot) {
            ASSERT_TRUE(order.empty());
            const auto any = slots.begin();
            history.Forget(any->second);
            slots.erase(any);
          } else {
            ASSERT_EQ(history.digest(oldest), order.back());
            shadow.remove(order.back());
            slots.erase(order.back());
            order.pop_back();
            history.Forget(oldest);
          }
        }
        slots[digest] = history.Add(digest);
        use(digest);
      } else if (what < 7) {
        history.Use(known->second);
        use(digest);
      } else if (what < 9) {
        if (history.listed(known->second)) {
          history.Unlist(known->second);
          order.remove(digest);
          shadow.remove(digest);
        }
      } else {
        history.Forget(known->second);
        order.remove(digest);
        shadow.remove(digest);
        slots.erase(known);
      }
      ASSERT_EQ(history.size(), slots.size());
      ASSERT_LE(history.size(), history.capacity());
      ASSERT_EQ(history.shadow_size(), shadow.size());
      for (const auto& [content, slot] : slots) {
        ASSERT_EQ(history.Find(content), slot);
        ASSERT_EQ(history.InShadow(slot), std::count(shadow.begin(), shadow.end(), content) == 1);
        ASSERT_EQ(history.listed(slot), std::count(order.begin(), order.end(), content) == 1);
      }
    }
  }
}

}  // namespace
}  // namespace kvik::kv
