// SPDX-License-Identifier: Apache-2.0
// codec/pages.h: KV blocks as the token-major rows that frames are made of, and back. Pure
// functions; rows of one layer and part are [kv_heads, num_tokens, head_dim].
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/float16.h"
#include "base/types.h"
#include "kv/geometry.h"

namespace kvik::codec {

// Tokens [first_token, first_token + num_tokens) of one sequence.
struct TokenSpan {
  std::span<const BlockId> block_table;  // block of every block_size_tokens positions from 0 on
  int32_t first_token = 0;
  int32_t num_tokens = 0;
};

// REQUIRES: bf16 geometry, the tokens lie in the table and its blocks in the arena; `head_stride`
// values between the heads of the rows.
void ReadRows(const kv::KvGeometry& geometry, std::span<const std::byte> arena,
              const TokenSpan& tokens, int32_t layer, kv::KvPart part, size_t head_stride,
              Bf16* rows);

// Writes the slots of `tokens` and no others.
void WriteRows(const kv::KvGeometry& geometry, std::span<std::byte> arena, const TokenSpan& tokens,
               int32_t layer, kv::KvPart part, size_t head_stride, const Bf16* rows);

// Zeroes slots [first_slot, block_size_tokens) of all layers, parts and heads of a block, so that a
// block that is filled in part holds defined bytes.
void ZeroSlotsFrom(const kv::KvGeometry& geometry, std::span<std::byte> arena, BlockId block,
                   int32_t first_slot);

}  // namespace kvik::codec
