// SPDX-License-Identifier: Apache-2.0
#include "base/huge_page_arena.h"

#include <algorithm>
#include <utility>

namespace kvik {

Result<std::span<std::byte>> HugePageArena::Allocate(size_t size_bytes) {
  constexpr size_t kChunkBytes = size_t{32} << 20;
  constexpr size_t kAlignment = 64;
  const size_t begin = (used_bytes_ + kAlignment - 1) / kAlignment * kAlignment;
  if (!chunks_.empty() && begin <= chunks_.back().size_bytes() &&
      size_bytes <= chunks_.back().size_bytes() - begin) {
    used_bytes_ = begin + size_bytes;
    return std::span(chunks_.back().data() + begin, size_bytes);
  }
  // What would leave most of a chunk's rest unused gets a chunk of its own, and the rest stays.
  const bool own = size_bytes > kChunkBytes / 2;
  KVIK_ASSIGN(AlignedBuffer chunk, AlignedBuffer::Create(own ? size_bytes : kChunkBytes));
  std::byte* data = chunk.data();
  if (own && !chunks_.empty()) {
    chunks_.insert(chunks_.end() - 1, std::move(chunk));
  } else {
    chunks_.push_back(std::move(chunk));
    used_bytes_ = size_bytes;
  }
  return std::span(data, size_bytes);
}

}  // namespace kvik
