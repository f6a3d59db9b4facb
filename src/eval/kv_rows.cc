// SPDX-License-Identifier: Apache-2.0
// Two neighbours of a key row lie side by side in its page, so keys move two at a time; values of
// one row are every other of their page.
#include "eval/kv_rows.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace kvik::eval {
namespace {

// Values of a row in the page of slot `slot`: consecutive pairs at key_stride, or singles at 2.
template <bool kWrite, typename Page, typename Row>
void MoveRow(const kv::KvGeometry& geometry, kv::KvPart part, int32_t slot, Page* page, Row* row) {
  const auto move = [](Page* in_page, Row* in_row, size_t bytes) {
    if constexpr (kWrite) {
      std::memcpy(in_page, in_row, bytes);
    } else {
      std::memcpy(in_row, in_page, bytes);
    }
  };
  const auto block = static_cast<size_t>(geometry.block_size_tokens);
  const auto head_dim = static_cast<size_t>(geometry.head_dim);
  Page* at = page + geometry.element_in_page(part, slot, 0);
  if (part == kv::KvPart::kKey) {
    for (size_t d = 0; d < head_dim; d += 2) {
      move(at + d * block, row + d, 2 * sizeof(Bf16));
    }
  } else {
    for (size_t d = 0; d < head_dim; ++d) {
      move(at + 2 * d, row + d, sizeof(Bf16));
    }
  }
}

template <bool kWrite, typename Byte, typename Row>
void Move(const kv::KvGeometry& geometry, std::span<Byte> arena, const RowRange& range,
          std::span<Row> rows) {
  using Page = std::conditional_t<kWrite, Bf16, const Bf16>;
  KVIK_CHECK(geometry.dtype == kv::KvDtype::kBf16);
  KVIK_CHECK(range.first_pos >= 0 && range.num_tokens >= 0);
  KVIK_CHECK(rows.size() == NumRowValues(geometry, range.num_tokens));
  const int32_t block_size = geometry.block_size_tokens;
  const auto head_dim = static_cast<size_t>(geometry.head_dim);
  const int32_t end = range.first_pos + range.num_tokens;
  KVIK_CHECK(range.block_table.size() * static_cast<size_t>(block_size) >=
             static_cast<size_t>(end));
  Row* row = rows.data();
  for (int32_t head = 0; head < geometry.num_kv_heads; ++head) {
    for (int32_t pos = range.first_pos; pos < end; ++pos, row += head_dim) {
      const BlockId block = range.block_table[static_cast<size_t>(pos / block_size)];
      const size_t offset = geometry.arena_offset_bytes(block, range.layer, range.part, head);
      KVIK_CHECK(block >= 0 && offset + geometry.bytes_per_page() <= arena.size());
      MoveRow<kWrite>(geometry, range.part, pos % block_size,
                      reinterpret_cast<Page*>(arena.data() + offset), row);
    }
  }
}

}  // namespace

size_t NumRowValues(const kv::KvGeometry& geometry, int32_t num_tokens) {
  return static_cast<size_t>(geometry.num_kv_heads) * static_cast<size_t>(num_tokens) *
         static_cast<size_t>(geometry.head_dim);
}

void ReadRows(const kv::KvGeometry& geometry, std::span<const std::byte> arena,
              const RowRange& range, std::span<Bf16> rows) {
  Move</*kWrite=*/false>(geometry, arena, range, rows);
}

void WriteRows(const kv::KvGeometry& geometry, std::span<std::byte> arena, const RowRange& range,
               std::span<const Bf16> rows) {
  Move</*kWrite=*/true>(geometry, arena, range, rows);
}

}  // namespace kvik::eval
