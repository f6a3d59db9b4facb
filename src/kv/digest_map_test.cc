// SPDX-License-Identifier: Apache-2.0
#include "kv/digest_map.h"

#include <gtest/gtest.h>

#include <unordered_map>

#include "base/rng.h"

namespace kvik::kv {
namespace {

// Digests that share their low bits fall into one place, so that probes run long and erasing has
// something to move.
TEST(DigestMap, RandomOperationsAgreeWithAnUnorderedMap) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    constexpr size_t kMax = 60;
    DigestMap map(kMax);
    std::unordered_map<uint64_t, int32_t> reference;
    for (int step = 0; step < 5000; ++step) {
      const uint64_t digest = (rng.Below(40) << 32) | (rng.Below(3) == 0 ? 125 : rng.Below(4));
      const auto known = reference.find(digest);
      ASSERT_EQ(map.Find(digest), known == reference.end() ? DigestMap::kAbsent : known->second);
      if (known != reference.end()) {
        map.Erase(digest);
        reference.erase(known);
      } else if (reference.size() < kMax) {
        map.Insert(digest, step);
        reference[digest] = step;
      }
      ASSERT_EQ(map.size(), reference.size());
      if (step % 100 == 0) {
        for (const auto& [key, value] : reference) {
          ASSERT_EQ(map.Find(key), value);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvik::kv
