// SPDX-License-Identifier: Apache-2.0
#include "codec/kept_slots.h"

#include <algorithm>
#include <utility>

namespace kvik::codec {

size_t TokensIn(const KeptRanges& ranges) {
  size_t n = 0;
  for (const TokenRange& range : ranges) {
    n += static_cast<size_t>(range.end - range.first);
  }
  return n;
}

void WriteKeptRanges(std::span<const KeptRanges> kept_of_head, TokenRange all, ByteWriter& out) {
  for (const KeptRanges& ranges : kept_of_head) {
    out.Varint(ranges.size());
    int32_t at = all.first;
    for (const TokenRange& range : ranges) {
      out.Varint(static_cast<uint64_t>(range.first - at));
      out.Varint(static_cast<uint64_t>(range.end - range.first - 1));
      at = range.end;
    }
  }
}

Result<std::vector<KeptRanges>> ReadKeptRanges(size_t heads, TokenRange all, ByteReader& reader) {
  const int32_t num_tokens = all.end - all.first;
  std::vector<KeptRanges> kept(heads);
  for (KeptRanges& ranges : kept) {
    KVIK_ASSIGN(const uint64_t count, reader.Varint());
    if (count > static_cast<uint64_t>(num_tokens)) {
      return Err(ErrorCode::kCorrupt, "a head keeps %llu ranges of %d tokens",
                 static_cast<unsigned long long>(count), num_tokens);
    }
    int64_t at = all.first;
    for (uint64_t i = 0; i < count; ++i) {
      KVIK_ASSIGN(const uint64_t gap, reader.Varint());
      KVIK_ASSIGN(const uint64_t length_less_one, reader.Varint());
      const int64_t left = all.end - at;
      if (gap >= static_cast<uint64_t>(left) || (i > 0 && gap == 0) ||
          length_less_one >= static_cast<uint64_t>(left) - gap) {
        return Err(ErrorCode::kCorrupt, "a kept range leaves the frame's tokens [%d, %d)",
                   all.first, all.end);
      }
      const auto first = static_cast<int32_t>(at + static_cast<int64_t>(gap));
      const auto end = static_cast<int32_t>(first + 1 + static_cast<int64_t>(length_less_one));
      ranges.push_back({first, end});
      at = end;
    }
  }
  return kept;
}

std::vector<HeadGroup> GroupHeads(std::vector<KeptRanges> kept_of_head) {
  std::vector<HeadGroup> groups;
  for (size_t head = 0; head < kept_of_head.size(); ++head) {
    auto found = std::find_if(groups.begin(), groups.end(), [&](const HeadGroup& group) {
      return group.kept == kept_of_head[head];
    });
    if (found == groups.end()) {
      groups.push_back({{}, std::move(kept_of_head[head])});
      found = groups.end() - 1;
    }
    found->heads.push_back(static_cast<int32_t>(head));
  }
  return groups;
}

}  // namespace kvik::codec
