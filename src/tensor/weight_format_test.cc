// SPDX-License-Identifier: Apache-2.0
#include "tensor/weight_format.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/float16.h"
#include "base/rng.h"
#include "tensor/testing/random_weights.h"

namespace kvik::tensor {
namespace {

constexpr uint64_t kSeed = 11;

// The formats value by value, from their description: where value i of a block finds its bits.
struct NaiveBlock {
  const std::byte* p;
  [[nodiscard]] unsigned U8(size_t i) const { return static_cast<unsigned>(p[i]); }
  [[nodiscard]] int S8(size_t i) const { return static_cast<int8_t>(p[i]); }
  [[nodiscard]] float Half(size_t i) const {
    return ToFloat(F16{static_cast<uint16_t>(U8(i) | U8(i + 1) << 8)});
  }
  // Nibble of a 32-value block whose bytes start at `at`.
  [[nodiscard]] int Nibble(size_t at, size_t i) const {
    return static_cast<int>(i < 16 ? U8(at + i) & 15U : U8(at + i - 16) >> 4);
  }
  [[nodiscard]] int FifthBit(size_t at, size_t i) const {
    return static_cast<int>(U8(at + i / 8) >> (i % 8) & 1U);
  }
  // Sub-scale and sub-minimum of 32-value group g in the 12 bytes at offset 4.
  [[nodiscard]] float SubScale(size_t g) const {
    return static_cast<float>(g < 4 ? U8(4 + g) & 63U : (U8(8 + g) & 15U) | (U8(g) >> 6) << 4);
  }
  [[nodiscard]] float SubMin(size_t g) const {
    return static_cast<float>(g < 4 ? U8(8 + g) & 63U : U8(8 + g) >> 4 | (U8(4 + g) >> 6) << 4);
  }
  [[nodiscard]] int NibbleK(size_t at, size_t i) const {
    const unsigned byte = U8(at + i / 64 * 32 + i % 32);
    return static_cast<int>(i % 64 < 32 ? byte & 15U : byte >> 4);
  }
};

float NaiveValue(WeightFormat format, const std::byte* block, size_t i) {
  const NaiveBlock b{block};
  switch (format) {
    case WeightFormat::kF32: {
      float f;
      std::memcpy(&f, block, 4);
      return f;
    }
    case WeightFormat::kF16:
      return b.Half(0);
    case WeightFormat::kBf16:
      return ToFloat(Bf16{static_cast<uint16_t>(b.U8(0) | b.U8(1) << 8)});
    case WeightFormat::kQ8_0:
      return b.Half(0) * static_cast<float>(b.S8(2 + i));
    case WeightFormat::kQ4_0:
      return b.Half(0) * static_cast<float>(b.Nibble(2, i) - 8);
    case WeightFormat::kQ4_1:
      return b.Half(0) * static_cast<float>(b.Nibble(4, i)) + b.Half(2);
    case WeightFormat::kQ5_0:
      return b.Half(0) * static_cast<float>(b.Nibble(6, i) + 16 * b.FifthBit(2, i) - 16);
    case WeightFormat::kQ5_1:
      return b.Half(0) * static_cast<float>(b.Nibble(8, i) + 16 * b.FifthBit(4, i)) + b.Half(2);
    case WeightFormat::kQ4_K:
      return b.Half(0) * b.SubScale(i / 32) * static_cast<float>(b.NibbleK(16, i)) -
             b.Half(2) * b.SubMin(i / 32);
    case WeightFormat::kQ5_K: {
      const int fifth = static_cast<int>(b.U8(16 + i % 32) >> (i / 32) & 1U);
      return b.Half(0) * b.SubScale(i / 32) * static_cast<float>(b.NibbleK(48, i) + 16 * fifth) -
             b.Half(2) * b.SubMin(i / 32);
    }
    case WeightFormat::kQ6_K: {
      const size_t half = i / 128;
      const size_t row = i % 128 / 32;  // of four rows that share the low and high bytes
      const size_t l = i % 32;
      const unsigned low = b.U8(half * 64 + row % 2 * 32 + l);
      const unsigned high = b.U8(128 + half * 32 + l) >> (2 * row) & 3U;
      const int q = static_cast<int>((row < 2 ? low & 15U : low >> 4) | high << 4) - 32;
      return b.Half(208) * static_cast<float>(b.S8(192 + i / 16)) * static_cast<float>(q);
    }
  }
  return 0;
}

TEST(WeightFormat, RowsDecodeAsTheFormatsAreDescribed) {
  Rng rng(kSeed);
  for (const WeightFormat format : kAllWeightFormats) {
    SCOPED_TRACE(WeightFormatName(format));
    const size_t k = 1024;
    const std::vector<std::byte> row = testing::RandomWeights(format, 1, k, rng);
    std::vector<float> out(k);
    DequantizeRow(format, row.data(), k, out.data());
    const WeightBlock block = WeightBlockOf(format);
    for (size_t i = 0; i < k; ++i) {
      ASSERT_EQ(out[i],
                NaiveValue(format, row.data() + i / block.values * block.bytes, i % block.values))
          << "value " << i << " seed " << kSeed;
    }
  }
}

// The blocks above are random; these are written by hand.
TEST(WeightFormat, HandMadeBlocks) {
  std::vector<std::byte> q4_1(20);
  const uint16_t d = ToF16(0.5F).bits;
  const uint16_t m = ToF16(-2.0F).bits;
  std::memcpy(q4_1.data(), &d, 2);
  std::memcpy(q4_1.data() + 2, &m, 2);
  q4_1[4] = std::byte{0xF3};
  float out[32];
  DequantizeRow(WeightFormat::kQ4_1, q4_1.data(), 32, out);
  EXPECT_EQ(out[0], -0.5F);  // 3 * 0.5 - 2
  EXPECT_EQ(out[16], 5.5F);  // 15 * 0.5 - 2
  EXPECT_EQ(out[1], -2.0F);

  std::vector<std::byte> q8_0(34);
  std::memcpy(q8_0.data(), &d, 2);
  q8_0[2] = std::byte{0x80};
  q8_0[33] = std::byte{127};
  DequantizeRow(WeightFormat::kQ8_0, q8_0.data(), 32, out);
  EXPECT_EQ(out[0], -64.0F);
  EXPECT_EQ(out[31], 63.5F);
}

TEST(WeightFormat, RowBytes) {
  EXPECT_EQ(WeightRowBytes(WeightFormat::kF32, 7), 28U);
  EXPECT_EQ(WeightRowBytes(WeightFormat::kQ4_1, 576), 360U);
  EXPECT_EQ(WeightRowBytes(WeightFormat::kQ6_K, 512), 420U);
}

}  // namespace
}  // namespace kvik::tensor
