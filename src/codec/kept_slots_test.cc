// SPDX-License-Identifier: Apache-2.0
#include "codec/kept_slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/rng.h"

namespace kvik::codec {
namespace {

// Ranges within `all`, of random lengths and gaps; touching ones would be one.
KeptRanges RandomRanges(Rng& rng, TokenRange all) {
  KeptRanges ranges;
  for (auto at = all.first + static_cast<int32_t>(rng.Below(5)); at < all.end;) {
    const auto end = std::min(all.end, at + 1 + static_cast<int32_t>(rng.Below(40)));
    ranges.push_back({at, end});
    at = end + 1 + static_cast<int32_t>(rng.Below(300));
  }
  return ranges;
}

TEST(KeptSlots, RangesComeBackAndAHeadIsInTheGroupOfItsRanges) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const auto first = static_cast<int32_t>(rng.Below(1000));
    const TokenRange all{first, first + 1 + static_cast<int32_t>(rng.Below(1000))};
    const KeptRanges shared = RandomRanges(rng, all);
    std::vector<KeptRanges> kept;
    for (size_t head = 0; head < 8; ++head) {
      kept.push_back(rng.Below(2) == 0 ? shared : RandomRanges(rng, all));
    }
    std::vector<std::byte> bytes;
    ByteWriter writer(bytes);
    WriteKeptRanges(kept, all, writer);
    ByteReader reader(bytes);
    const auto read = ReadKeptRanges(kept.size(), all, reader);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(*read, kept);
    EXPECT_EQ(reader.left(), 0U);

    std::vector<int32_t> firsts;
    size_t heads = 0;
    for (const HeadGroup& group : GroupHeads(kept)) {
      for (const int32_t head : group.heads) {
        EXPECT_EQ(kept[static_cast<size_t>(head)], group.kept);
      }
      EXPECT_TRUE(std::is_sorted(group.heads.begin(), group.heads.end()));
      firsts.push_back(group.heads.front());
      heads += group.heads.size();
      // No other group keeps the same.
      EXPECT_EQ(std::count(kept.begin(), kept.end(), group.kept),
                static_cast<ptrdiff_t>(group.heads.size()));
    }
    EXPECT_EQ(heads, kept.size());
    EXPECT_TRUE(std::is_sorted(firsts.begin(), firsts.end()));

    bytes.pop_back();
    ByteReader shorter(bytes);
    EXPECT_EQ(ReadKeptRanges(kept.size(), all, shorter).error().code, ErrorCode::kCorrupt);
  }
}

TEST(KeptSlots, TokensAreCounted) {
  EXPECT_EQ(TokensIn({}), 0U);
  EXPECT_EQ(TokensIn({{3, 4}, {10, 20}}), 11U);
}

}  // namespace
}  // namespace kvik::codec
