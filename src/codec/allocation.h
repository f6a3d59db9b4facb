// SPDX-License-Identifier: Apache-2.0
// codec/allocation.h: a number for every layer and kv head, from one argument of a stage.
//
//   16                    the same everywhere
//   thirds(32,16,12)      by thirds of the layers, first to last
//   pyramid(16,4)         linear from the first layer to the last
//   mix(0.6,16,5)         by heads: the 60 % of all (layer, kv head) cells with the lowest
//                         calibrated score get 5, the others 16
//
// Layers are compared as numbers. Immutable.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "codec/stage.h"
#include "codec/stage_args.h"

namespace kvik::codec {

// The parameter `scores` of stages that rank heads, for their list: the calibrated tensor
// "scores/<word>".
ParamSpec ScoresParam(std::string summary);

class Allocation {
 public:
  // `value` was checked by StageArgs. Integral: values between are rounded to whole numbers.
  // `scores` names the tensor [layers, kv_heads] that mix goes by; kUnsupported when mix is asked
  // for and it is missing. Equal scores are told apart by layer, then by head.
  static Result<Allocation> Make(const ArgValue& value, bool integral, std::string_view scores,
                                 const StageSite& site);

  // REQUIRES: a layer and a kv head of the model.
  [[nodiscard]] double At(int32_t layer, int32_t head) const {
    return distinct_[Index(layer, head)];
  }
  // All values there are, ascending; At(layer, head) is distinct()[Index(layer, head)].
  [[nodiscard]] const std::vector<double>& distinct() const { return distinct_; }
  [[nodiscard]] size_t Index(int32_t layer, int32_t head) const {
    return cells_[static_cast<size_t>(layer) * cells_a_layer_ +
                  (cells_a_layer_ == 1 ? 0 : static_cast<size_t>(head))];
  }

 private:
  size_t cells_a_layer_ = 1;  // kv_heads, or 1: all heads of a layer are alike
  std::vector<double> distinct_;
  std::vector<uint32_t> cells_;  // [layers, cells_a_layer_], indices of distinct_
};

}  // namespace kvik::codec
