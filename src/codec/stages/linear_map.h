// SPDX-License-Identifier: Apache-2.0
// codec/stages/linear_map.h: a matrix per kv head and layer as a transform: what klt, qklt and
// affine(kind=full) have in common.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/result.h"
#include "codec/stage.h"

namespace kvik::codec {

// How many of `channels` coefficients a share of them is: at least one.
int32_t KeptChannels(double share, int32_t channels);

// y = first `kept` rows of the basis times x; x = basis inverse times y. `bases` [layers, kv_heads,
// channels, channels] with a basis vector a row.
//   orthonormal   the rows are orthonormal but for the rounding to half, which is undone first; the
//                 inverse is the transpose
//   any           the inverse is worked out, in double
// So in both cases the inverse is exact to float32 and costs no side information. kInvalidInput: a
// basis does not span its space.
enum class BasisKind { kOrthonormal, kAny };
Result<std::unique_ptr<Transform>> MakeLinearMap(const StageSite& site,
                                                 const std::vector<float>& bases, BasisKind kind,
                                                 int32_t kept);

}  // namespace kvik::codec
