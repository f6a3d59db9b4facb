// SPDX-License-Identifier: Apache-2.0
#include "tensor/weight_format.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/float16.h"
#include "tensor/weight_block.h"

namespace kvik::tensor {
namespace {

const uint8_t* Bytes(const std::byte* p) { return reinterpret_cast<const uint8_t*>(p); }

template <typename T>
T LoadAs(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

// 32 nibbles: byte j has value j below and value j + 16 above.
void SplitNibbles32(const uint8_t* bytes, uint8_t* q) {
  for (int j = 0; j < 16; ++j) {
    q[j] = bytes[j] & 15U;
    q[j + 16] = bytes[j] >> 4;
  }
}

// Bit j of `bits` is bit 4 of value j.
void AddFifthBits32(const std::byte* bytes, uint8_t* q) {
  const auto bits = LoadAs<uint32_t>(bytes);
  for (int j = 0; j < 32; ++j) {
    q[j] = static_cast<uint8_t>(q[j] | ((bits >> j) & 1U) << 4);
  }
}

// Eight 6-bit scales and eight 6-bit minimums in 12 bytes: the first four of each in the low six
// bits of bytes 0..3 and 4..7; the others have four bits in bytes 8..11 and two on top of those.
void SplitScales6(const uint8_t* bytes, uint8_t* scale, uint8_t* min) {
  for (int j = 0; j < 4; ++j) {
    scale[j] = bytes[j] & 63U;
    min[j] = bytes[j + 4] & 63U;
    scale[j + 4] = static_cast<uint8_t>((bytes[j + 8] & 15U) | (bytes[j] >> 6) << 4);
    min[j + 4] = static_cast<uint8_t>((bytes[j + 8] >> 4) | (bytes[j + 4] >> 6) << 4);
  }
}

// 256 nibbles in runs of 64: byte l of a run's 32 has value l below and value l + 32 above.
void SplitNibbles256(const uint8_t* bytes, uint8_t* q) {
  for (int run = 0; run < 4; ++run) {
    for (int l = 0; l < 32; ++l) {
      q[64 * run + l] = bytes[32 * run + l] & 15U;
      q[64 * run + 32 + l] = bytes[32 * run + l] >> 4;
    }
  }
}

void SplitQ6K(const uint8_t* low, const uint8_t* high, uint8_t* q) {
  for (int half = 0; half < 2; ++half, low += 64, high += 32, q += 128) {
    for (int l = 0; l < 32; ++l) {
      q[l] = static_cast<uint8_t>((low[l] & 15U) | (high[l] & 3U) << 4);
      q[l + 32] = static_cast<uint8_t>((low[l + 32] & 15U) | (high[l] >> 2 & 3U) << 4);
      q[l + 64] = static_cast<uint8_t>(low[l] >> 4 | (high[l] >> 4 & 3U) << 4);
      q[l + 96] = static_cast<uint8_t>(low[l + 32] >> 4 | (high[l] >> 6) << 4);
    }
  }
}

}  // namespace

const char* WeightFormatName(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "F32";
    case WeightFormat::kF16:
      return "F16";
    case WeightFormat::kBf16:
      return "BF16";
    case WeightFormat::kQ8_0:
      return "Q8_0";
    case WeightFormat::kQ4_0:
      return "Q4_0";
    case WeightFormat::kQ4_1:
      return "Q4_1";
    case WeightFormat::kQ5_0:
      return "Q5_0";
    case WeightFormat::kQ5_1:
      return "Q5_1";
    case WeightFormat::kQ4_K:
      return "Q4_K";
    case WeightFormat::kQ5_K:
      return "Q5_K";
    case WeightFormat::kQ6_K:
      return "Q6_K";
  }
  return "unknown";
}

WeightBlock WeightBlockOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return {1, 4};
    case WeightFormat::kF16:
    case WeightFormat::kBf16:
      return {1, 2};
    case WeightFormat::kQ8_0:
      return {32, 34};
    case WeightFormat::kQ4_0:
      return {32, 18};
    case WeightFormat::kQ4_1:
      return {32, 20};
    case WeightFormat::kQ5_0:
      return {32, 22};
    case WeightFormat::kQ5_1:
      return {32, 24};
    case WeightFormat::kQ4_K:
      return {256, 144};
    case WeightFormat::kQ5_K:
      return {256, 176};
    case WeightFormat::kQ6_K:
      return {256, 210};
  }
  return {1, 4};
}

size_t WeightRowBytes(WeightFormat format, size_t k) {
  const WeightBlock block = WeightBlockOf(format);
  KVIK_CHECK(k % block.values == 0);
  return k / block.values * block.bytes;
}

void SplitBlock(WeightFormat format, const std::byte* block, WeightBlockParts* parts) {
  const uint8_t* bytes = Bytes(block);
  if (format != WeightFormat::kQ6_K) {
    parts->d = LoadAs<F16>(block);
  }
  switch (format) {
    case WeightFormat::kQ8_0:
      std::memcpy(parts->q, bytes + 2, 32);
      return;
    case WeightFormat::kQ4_0:
      SplitNibbles32(bytes + 2, parts->q);
      return;
    case WeightFormat::kQ4_1:
      parts->m = LoadAs<F16>(block + 2);
      SplitNibbles32(bytes + 4, parts->q);
      return;
    case WeightFormat::kQ5_0:
      SplitNibbles32(bytes + 6, parts->q);
      AddFifthBits32(block + 2, parts->q);
      return;
    case WeightFormat::kQ5_1:
      parts->m = LoadAs<F16>(block + 2);
      SplitNibbles32(bytes + 8, parts->q);
      AddFifthBits32(block + 4, parts->q);
      return;
    case WeightFormat::kQ4_K:
      parts->m = LoadAs<F16>(block + 2);
      SplitScales6(bytes + 4, parts->sub_scale, parts->sub_min);
      SplitNibbles256(bytes + 16, parts->q);
      return;
    case WeightFormat::kQ5_K:
      parts->m = LoadAs<F16>(block + 2);
      SplitScales6(bytes + 4, parts->sub_scale, parts->sub_min);
      SplitNibbles256(bytes + 48, parts->q);
      for (int j = 0; j < 256; ++j) {  // bit i of byte l is the fifth bit of value 32 i + l
        parts->q[j] =
            static_cast<uint8_t>(parts->q[j] | (bytes[16 + j % 32] >> (j / 32) & 1U) << 4);
      }
      return;
    case WeightFormat::kQ6_K:
      SplitQ6K(bytes, bytes + 128, parts->q);
      std::memcpy(parts->sub_scale, bytes + 192, 16);
      parts->d = LoadAs<F16>(block + 208);
      return;
    default:
      KVIK_CHECK(IsQuantized(format));
  }
}

void DequantizeRow(WeightFormat format, const std::byte* row, size_t k, float* out) {
  switch (format) {
    case WeightFormat::kF32:
      std::memcpy(out, row, k * sizeof(float));
      return;
    case WeightFormat::kF16:
      for (size_t i = 0; i < k; ++i) {
        out[i] = ToFloat(LoadAs<F16>(row + 2 * i));
      }
      return;
    case WeightFormat::kBf16:
      for (size_t i = 0; i < k; ++i) {
        out[i] = ToFloat(LoadAs<Bf16>(row + 2 * i));
      }
      return;
    default:
      break;
  }
  const QuantFormat quant = QuantFormatOf(format);
  const WeightBlock block = WeightBlockOf(format);
  KVIK_CHECK(k % block.values == 0);
  WeightBlockParts parts;
  for (size_t base = 0; base < k; base += block.values, row += block.bytes) {
    SplitBlock(format, row, &parts);
    const float d = ToFloat(parts.d);
    const float m = quant.has_min ? ToFloat(parts.m) : 0.0F;
    for (size_t i = 0; i < block.values; ++i) {
      float scale = d;
      if (quant.has_sub_scales) {
        const uint8_t s = parts.sub_scale[i / static_cast<size_t>(quant.scale_k)];
        scale *= static_cast<float>(quant.bits == 6 ? static_cast<int8_t>(s) : s);
      }
      const int q = quant.bits == 8 ? static_cast<int8_t>(parts.q[i]) : parts.q[i] - quant.offset;
      const float product = scale * static_cast<float>(q);
      if (!quant.has_min) {
        out[base + i] = product;
      } else if (quant.has_sub_scales) {
        const uint8_t min = parts.sub_min[i / 32];
        out[base + i] = product - m * static_cast<float>(min);
      } else {
        out[base + i] = product + m;
      }
    }
  }
}

}  // namespace kvik::tensor
