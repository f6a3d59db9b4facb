// SPDX-License-Identifier: Apache-2.0
// tensor/weight_format.h: how weights lie in model files: plain floats and ggml's block formats.
//
// A quantised row is a sequence of blocks; a block holds consecutive values of one row. All
// formats decode to exact float32 values: d * q + m with products that fit 24 bits, so a fused
// multiply-add and a multiply followed by an add give the same bits. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvik::tensor {

// NOLINTBEGIN(readability-identifier-naming): the names of the formats have underscores
enum class WeightFormat {
  kF32,
  kF16,
  kBf16,
  kQ8_0,  // 32 values: f16 d, 32 int8 q                                   d * q
  kQ4_0,  // 32 values: f16 d, 4-bit q                                     d * (q - 8)
  kQ4_1,  // 32 values: f16 d, f16 m, 4-bit q                              d * q + m
  kQ5_0,  // 32 values: f16 d, fifth bits, 4-bit q                         d * (q - 16)
  kQ5_1,  // 32 values: f16 d, f16 m, fifth bits, 4-bit q                  d * q + m
  kQ4_K,  // 256 values: f16 d, f16 dmin, 8 x (6-bit s, 6-bit b), 4-bit q  d * s * q - dmin * b
  kQ5_K,  // the same with fifth bits
  kQ6_K,  // 256 values: 4-bit and 2-bit q, 16 x int8 s, f16 d             d * s * (q - 32)
};
// NOLINTEND(readability-identifier-naming)

inline constexpr WeightFormat kAllWeightFormats[] = {
    WeightFormat::kF32,  WeightFormat::kF16,  WeightFormat::kBf16, WeightFormat::kQ8_0,
    WeightFormat::kQ4_0, WeightFormat::kQ4_1, WeightFormat::kQ5_0, WeightFormat::kQ5_1,
    WeightFormat::kQ4_K, WeightFormat::kQ5_K, WeightFormat::kQ6_K};

const char* WeightFormatName(WeightFormat format);  // "F32", "Q4_K", ...: as model files say it

struct WeightBlock {
  size_t values;  // 1 for plain floats
  size_t bytes;
};
WeightBlock WeightBlockOf(WeightFormat format);

// Bytes of a row of `k` values. REQUIRES: k is a multiple of the block's values.
size_t WeightRowBytes(WeightFormat format, size_t k);

// The reference: decodes `k` values of one row into out[k]. `row` needs no alignment and has
// WeightRowBytes(format, k) bytes.
void DequantizeRow(WeightFormat format, const std::byte* row, size_t k, float* out);

}  // namespace kvik::tensor
