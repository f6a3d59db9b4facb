// SPDX-License-Identifier: Apache-2.0
// model/testing/reference_model.h: the transformer written down plainly in double precision, one
// sequence, no cache, no packing. What the fast forward pass is compared with.
#pragma once

#include <span>
#include <vector>

#include "base/types.h"
#include "model/model_source.h"

namespace kvik::model::testing {

// Next-token logits at every position, [tokens, vocab]. Weights are used in the order of the file:
// interleaved rotary pairs are rotated as pairs, which checks the reordering at load.
std::vector<std::vector<double>> ReferenceLogits(const ModelSource& source,
                                                 std::span<const TokenId> tokens);

}  // namespace kvik::model::testing
