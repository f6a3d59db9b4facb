// SPDX-License-Identifier: Apache-2.0
// attention/kv_pages.h: the pages of a KV block as plain token-major rows. Not the fast path: for
// tests, tools and codecs, which must not know how kernels like their pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/types.h"
#include "kv/geometry.h"

namespace kvik::attention {

// Slots [first_slot, first_slot + n) of one page of a block.
struct PageRef {
  BlockId block = 0;
  int32_t layer = 0;
  kv::KvPart part = kv::KvPart::kKey;
  int32_t kv_head = 0;
  int32_t first_slot = 0;
};

// Reads n = out.size() / head_dim slots into out [n, head_dim], widened to float32.
// REQUIRES: everything lies within the geometry and the arena.
void ReadPage(const kv::KvGeometry& geometry, std::span<const std::byte> arena, const PageRef& page,
              std::span<float> out);

// Stores rows [n, head_dim] in n slots, rounded to the geometry's type.
void WritePage(const kv::KvGeometry& geometry, std::span<std::byte> arena, const PageRef& page,
               std::span<const float> rows);

}  // namespace kvik::attention
