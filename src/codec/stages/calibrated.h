// SPDX-License-Identifier: Apache-2.0
// codec/stages/calibrated.h: how stages find the tensors they were calibrated with.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "codec/side_info.h"
#include "codec/stage.h"

namespace kvik::codec {

// The tensor named side_key + suffix, [layers, kv_heads, inner...], valid as long as the site's
// side information. kUnsupported: there is none, or of another shape; the message names it.
Result<const SideTensor*> Calibrated(const StageSite& site, std::string_view suffix,
                                     const std::vector<int32_t>& inner);

// Index of a kv head among all of a model: what tensors [layers, kv_heads, ...] are ordered by.
inline size_t CellOf(const ModelFacts& model, int32_t layer, int32_t head) {
  return static_cast<size_t>(layer) * static_cast<size_t>(model.num_kv_heads) +
         static_cast<size_t>(head);
}
inline size_t NumCells(const ModelFacts& model) {
  return static_cast<size_t>(model.num_layers) * static_cast<size_t>(model.num_kv_heads);
}

}  // namespace kvik::codec
