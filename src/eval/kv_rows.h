// SPDX-License-Identifier: Apache-2.0
// eval/kv_rows.h: keys or values of one layer as rows, out of the pages of an arena and back.
//
// Rows are [kv_heads, tokens, head_dim] bf16, what a codec takes; pages lie as kv/geometry.h says.
// Bits are moved (codec/pages.h), never converted. Pure functions; calls for different layers or
// parts may run at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/float16.h"
#include "base/types.h"
#include "kv/geometry.h"

namespace kvik::eval {

// Positions [first_pos, first_pos + num_tokens) of a sequence, one layer and part.
struct RowRange {
  std::span<const BlockId> block_table;  // block of every block_size_tokens positions from 0 on
  int32_t layer = 0;
  kv::KvPart part = kv::KvPart::kKey;
  int32_t first_pos = 0;
  int32_t num_tokens = 0;
};

// Bf16 values of a range: kv_heads * tokens * head_dim.
size_t NumRowValues(const kv::KvGeometry& geometry, int32_t num_tokens);

// REQUIRES: the geometry's dtype is bf16; the table covers the range and its blocks lie in the
// arena; rows has NumRowValues() values.
void ReadRows(const kv::KvGeometry& geometry, std::span<const std::byte> arena,
              const RowRange& range, std::span<Bf16> rows);
void WriteRows(const kv::KvGeometry& geometry, std::span<std::byte> arena, const RowRange& range,
               std::span<const Bf16> rows);

}  // namespace kvik::eval
