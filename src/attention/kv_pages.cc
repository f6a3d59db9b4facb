// SPDX-License-Identifier: Apache-2.0
#include "attention/kv_pages.h"

#include <cstring>

#include "base/check.h"
#include "base/float16.h"

namespace kvik::attention {
namespace {

// Byte offset of the page in the arena; checks that `num_values` values from first_slot on fit.
size_t CheckedOffset(const kv::KvGeometry& g, size_t arena_bytes, const PageRef& page,
                     size_t num_values) {
  const auto head_dim = static_cast<size_t>(g.head_dim);
  KVIK_CHECK(page.block >= 0 && page.layer >= 0 && page.layer < g.num_layers && page.kv_head >= 0 &&
             page.kv_head < g.num_kv_heads && page.first_slot >= 0 && num_values % head_dim == 0);
  KVIK_CHECK(static_cast<size_t>(page.first_slot) + num_values / head_dim <=
             static_cast<size_t>(g.block_size_tokens));
  const size_t offset = g.arena_offset_bytes(page.block, page.layer, page.part, page.kv_head);
  KVIK_CHECK(offset + g.bytes_per_page() <= arena_bytes);
  return offset;
}

}  // namespace

void ReadPage(const kv::KvGeometry& geometry, std::span<const std::byte> arena, const PageRef& page,
              std::span<float> out) {
  const std::byte* base = arena.data() + CheckedOffset(geometry, arena.size(), page, out.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const int slot = page.first_slot + static_cast<int>(i) / geometry.head_dim;
    const size_t element =
        geometry.element_in_page(page.part, slot, static_cast<int>(i) % geometry.head_dim);
    if (geometry.dtype == kv::KvDtype::kF32) {
      std::memcpy(&out[i], base + element * sizeof(float), sizeof(float));
    } else {
      Bf16 value;
      std::memcpy(&value, base + element * sizeof(Bf16), sizeof(Bf16));
      out[i] = ToFloat(value);
    }
  }
}

void WritePage(const kv::KvGeometry& geometry, std::span<std::byte> arena, const PageRef& page,
               std::span<const float> rows) {
  std::byte* base = arena.data() + CheckedOffset(geometry, arena.size(), page, rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const int slot = page.first_slot + static_cast<int>(i) / geometry.head_dim;
    const size_t element =
        geometry.element_in_page(page.part, slot, static_cast<int>(i) % geometry.head_dim);
    if (geometry.dtype == kv::KvDtype::kF32) {
      std::memcpy(base + element * sizeof(float), &rows[i], sizeof(float));
    } else {
      const Bf16 value = ToBf16(rows[i]);
      std::memcpy(base + element * sizeof(Bf16), &value, sizeof(Bf16));
    }
  }
}

}  // namespace kvik::attention
