// SPDX-License-Identifier: Apache-2.0
// tensor/weight_block.h: one block of a weight format taken apart into integers and scales.
// DequantizeRow and the packing of weights both start here. Internal to tensor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/float16.h"
#include "tensor/weight_format.h"

namespace kvik::tensor {

// How a quantised format turns q into a value: scale * (q - offset) + min, where
//   scale = d, or d * sub_scale[i / scale_k] when has_sub_scales
//   min = 0, m when has_min, or -m * sub_min[i / 32] when has_sub_scales and has_min
struct QuantFormat {
  int bits = 0;  // of q; 8-bit q are signed, others are not
  int offset = 0;
  bool has_min = false;
  bool has_sub_scales = false;
  int scale_k = 32;  // values that share one scale
  int block_k = 32;  // values of one block of the file
};
// REQUIRES: the format is quantised.
constexpr QuantFormat QuantFormatOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ8_0:
      return {.bits = 8};
    case WeightFormat::kQ4_0:
      return {.bits = 4, .offset = 8};
    case WeightFormat::kQ4_1:
      return {.bits = 4, .has_min = true};
    case WeightFormat::kQ5_0:
      return {.bits = 5, .offset = 16};
    case WeightFormat::kQ5_1:
      return {.bits = 5, .has_min = true};
    case WeightFormat::kQ4_K:
      return {.bits = 4, .has_min = true, .has_sub_scales = true, .block_k = 256};
    case WeightFormat::kQ5_K:
      return {.bits = 5, .has_min = true, .has_sub_scales = true, .block_k = 256};
    case WeightFormat::kQ6_K:
      return {.bits = 6, .offset = 32, .has_sub_scales = true, .scale_k = 16, .block_k = 256};
    default:
      return {};
  }
}
constexpr bool IsQuantized(WeightFormat format) { return QuantFormatOf(format).bits != 0; }

// The parts of one block; fields a format lacks stay unset.
struct WeightBlockParts {
  F16 d;
  F16 m;                  // also dmin
  uint8_t sub_scale[16];  // bits: int8 for Q6_K, else unsigned
  uint8_t sub_min[8];
  uint8_t q[256];  // bits: int8 for Q8_0, else unsigned
};
// REQUIRES: the format is quantised; `block` has WeightBlockOf(format).bytes.
void SplitBlock(WeightFormat format, const std::byte* block, WeightBlockParts* parts);

}  // namespace kvik::tensor
