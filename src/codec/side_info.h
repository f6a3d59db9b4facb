// SPDX-License-Identifier: Apache-2.0
// codec/side_info.h: calibrated tensors that a decoder has before any frame arrives: means, bases,
// steps, head scores, symbol tables. Part of a profile library; immutable and thread-safe.
//
// Names. What a stage calibrated depends on what ran before it, so names do:
//
//   "<stage>/<k|v>/<transforms before, joined by +>[/<tensor>]"     of a transform or quantizer
//   "tables/<k|v>/<transforms>-><quantizer>"  [contexts, alphabet]  counts of symbols, for coders
//   "scores/<method>"                         [layers, kv_heads]    of heads; high = retrieval
//
// Examples: "center/k/prerope" [layers, kv_heads, head_dim] is the mean of keys before their
// rotation; "klt/v/center" [layers, kv_heads, head_dim, head_dim] the rows of the basis.
// All values are kept as IEEE half: both sides compute with the same rounded numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace kvik::codec {

struct SideTensor {
  std::vector<int32_t> shape;
  std::vector<float> values;  // row-major, every one representable as a finite half

  // The innermost `inner` dimensions at the given outer index, e.g. {layer, head}.
  [[nodiscard]] std::span<const float> At(std::span<const int32_t> index) const;
};

class SideInfo {
 public:
  [[nodiscard]] const SideTensor* Find(std::string_view name) const;
  // Like Find, but kUnsupported when it is missing or has another shape; the message names it.
  [[nodiscard]] Result<const SideTensor*> Need(std::string_view name,
                                               std::span<const int32_t> shape) const;
  // Rounds to half. kInvalidInput: shape and number of values differ, or a value is not finite or
  // overflows a half. Replaces a tensor of the same name.
  Result<void> Add(std::string name, std::vector<int32_t> shape, std::span<const float> values);

  [[nodiscard]] const std::map<std::string, SideTensor, std::less<>>& tensors() const {
    return tensors_;
  }

 private:
  std::map<std::string, SideTensor, std::less<>> tensors_;
};

}  // namespace kvik::codec
