// SPDX-License-Identifier: Apache-2.0
// codec/kept_slots.h: which slots of a frame a selector kept, head by head. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "codec/byte_stream.h"
#include "codec/stage.h"

namespace kvik::codec {

// Kept ranges of a head: ascending, apart, within the frame's tokens.
using KeptRanges = std::vector<TokenRange>;

size_t TokensIn(const KeptRanges& ranges);

// As docs/wire-format.md has them. `all` are the frame's tokens.
void WriteKeptRanges(std::span<const KeptRanges> kept_of_head, TokenRange all, ByteWriter& out);
// Of as many heads as the caller expects. kCorrupt: ranges that leave the frame's tokens.
Result<std::vector<KeptRanges>> ReadKeptRanges(size_t heads, TokenRange all, ByteReader& reader);

// Heads that keep the same slots: they are coded together.
struct HeadGroup {
  std::vector<int32_t> heads;  // of the frame: 0 is its first
  KeptRanges kept;
};

// In the order of their first heads.
std::vector<HeadGroup> GroupHeads(std::vector<KeptRanges> kept_of_head);

}  // namespace kvik::codec
