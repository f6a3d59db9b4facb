// SPDX-License-Identifier: Apache-2.0
#include "eval/kv_rows.h"

#include "base/check.h"
#include "codec/pages.h"

namespace kvik::eval {
namespace {

codec::TokenSpan SpanOf(const RowRange& range) {
  return {.block_table = range.block_table,
          .first_token = range.first_pos,
          .num_tokens = range.num_tokens};
}

size_t HeadStride(const kv::KvGeometry& geometry, const RowRange& range) {
  return static_cast<size_t>(range.num_tokens) * static_cast<size_t>(geometry.head_dim);
}

}  // namespace

size_t NumRowValues(const kv::KvGeometry& geometry, int32_t num_tokens) {
  return static_cast<size_t>(geometry.num_kv_heads) * static_cast<size_t>(num_tokens) *
         static_cast<size_t>(geometry.head_dim);
}

void ReadRows(const kv::KvGeometry& geometry, std::span<const std::byte> arena,
              const RowRange& range, std::span<Bf16> rows) {
  KVIK_CHECK(rows.size() == NumRowValues(geometry, range.num_tokens));
  codec::ReadRows(geometry, arena, SpanOf(range), range.layer, range.part,
                  HeadStride(geometry, range), rows.data());
}

void WriteRows(const kv::KvGeometry& geometry, std::span<std::byte> arena, const RowRange& range,
               std::span<const Bf16> rows) {
  KVIK_CHECK(rows.size() == NumRowValues(geometry, range.num_tokens));
  codec::WriteRows(geometry, arena, SpanOf(range), range.layer, range.part,
                   HeadStride(geometry, range), rows.data());
}

}  // namespace kvik::eval
