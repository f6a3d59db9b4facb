// SPDX-License-Identifier: Apache-2.0
// base/types.h: ids shared by every module.
#pragma once

#include <cstdint>

namespace kvik {

using TokenId = int32_t;  // index into a model's vocabulary
using BlockId = int32_t;  // index into the KV arena, [0, num_blocks)

constexpr BlockId kNoBlock = -1;

}  // namespace kvik
