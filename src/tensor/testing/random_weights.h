// SPDX-License-Identifier: Apache-2.0
// tensor/testing/random_weights.h: valid weights of any format for tests and benchmarks.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "base/float16.h"
#include "base/rng.h"
#include "tensor/weight_format.h"

namespace kvik::tensor::testing {

// [rows, cols] with every bit of the quants and sub-scales random and values of ordinary size.
// REQUIRES: cols is a multiple of the format's block.
inline std::vector<std::byte> RandomWeights(WeightFormat format, size_t rows, size_t cols,
                                            Rng& rng) {
  std::vector<std::byte> bytes(rows * WeightRowBytes(format, cols));
  const auto put = [&](size_t offset, auto value) {
    std::memcpy(bytes.data() + offset, &value, sizeof(value));
  };
  const auto real = [&](double magnitude) {
    return static_cast<float>((rng.Uniform() * 2 - 1) * magnitude);
  };
  const WeightBlock block = WeightBlockOf(format);
  if (block.values > 1) {
    size_t i = 0;
    for (; i + 8 <= bytes.size(); i += 8) {
      put(i, rng.Next());
    }
    for (; i < bytes.size(); ++i) {
      put(i, static_cast<uint8_t>(rng.Next()));
    }
  }
  for (size_t offset = 0; offset < bytes.size(); offset += block.bytes) {
    switch (format) {
      case WeightFormat::kF32:
        put(offset, real(1.0));
        break;
      case WeightFormat::kF16:
        put(offset, ToF16(real(1.0)));
        break;
      case WeightFormat::kBf16:
        put(offset, ToBf16(real(1.0)));
        break;
      case WeightFormat::kQ4_1:
      case WeightFormat::kQ5_1:
        put(offset + 2, ToF16(real(0.5)));
        [[fallthrough]];
      case WeightFormat::kQ8_0:
      case WeightFormat::kQ4_0:
      case WeightFormat::kQ5_0:
        put(offset, ToF16(real(0.03)));
        break;
      case WeightFormat::kQ4_K:
      case WeightFormat::kQ5_K:
        put(offset, ToF16(real(0.002)));
        put(offset + 2, ToF16(real(0.01)));
        break;
      case WeightFormat::kQ6_K:
        put(offset + 208, ToF16(real(0.0005)));
        break;
    }
  }
  return bytes;
}

}  // namespace kvik::tensor::testing
