// SPDX-License-Identifier: Apache-2.0
// attention/reference.h: attention as the textbook writes it, in double precision. What the kernels
// are tested against; slow.
#pragma once

#include <cstddef>
#include <span>

#include "attention/plan.h"
#include "kv/block_masks.h"
#include "kv/geometry.h"

namespace kvik::attention {

// The contract of Attention::Attend: q and out are [rows, num_q_heads, head_dim]. Reads the arena
// as stored, so rounding of keys and values to bf16 is not part of the error.
void ReferenceAttention(const AttentionShape& shape, const kv::KvGeometry& geometry,
                        std::span<const MsaSegment> segments, int layer, std::span<const float> q,
                        std::span<const std::byte> arena, std::span<double> out,
                        const kv::BlockMasks* masks = nullptr);

}  // namespace kvik::attention
