// SPDX-License-Identifier: Apache-2.0
#include "codec/kernels/rows_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"

namespace kvik::codec {
namespace {

TEST(RowsKernels, EveryBf16WidensAndRoundsAsTheScalarFunctionsSay) {
  std::vector<Bf16> all(65536);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].bits = static_cast<uint16_t>(i);
  }
  for (const Isa isa : SupportedIsas()) {
    const RowsKernels& kernels = RowsKernelsOf(isa);
    for (const size_t n : {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{37}, all.size()}) {
      std::vector<float> wide(n + 1, 7.0F);
      kernels.widen(all.data(), n, wide.data());
      for (size_t i = 0; i < n; ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), std::bit_cast<uint32_t>(ToFloat(all[i])));
      }
      EXPECT_EQ(wide[n], 7.0F);
    }
  }
}

TEST(RowsKernels, RoundingAgreesOnAnyFloat) {
  Rng rng(2);
  std::vector<float> in(10007);
  for (float& value : in) {
    value = std::bit_cast<float>(static_cast<uint32_t>(rng.Next()));
  }
  for (const Isa isa : SupportedIsas()) {
    std::vector<Bf16> out(in.size() + 1, Bf16{0x1234});
    RowsKernelsOf(isa).round(in.data(), in.size(), out.data());
    for (size_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(out[i], ToBf16(in[i])) << IsaName(isa);
    }
    EXPECT_EQ(out.back().bits, 0x1234);
    // Around the caches, from any alignment.
    for (size_t shift = 0; shift < 17; ++shift) {
      std::vector<Bf16> streamed(in.size() + 18, Bf16{0x1234});
      RowsKernelsOf(isa).round_streaming(in.data(), in.size(), streamed.data() + shift);
      RowsKernelsOf(isa).fence();
      ASSERT_TRUE(
          std::equal(out.begin(), out.end() - 1, streamed.begin() + static_cast<ptrdiff_t>(shift)));
      ASSERT_EQ(streamed[in.size() + shift].bits, 0x1234);
    }
  }
}

TEST(RowsKernels, OneValueBeyondTheLimitIsFoundAnywhere) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Isa isa : SupportedIsas()) {
    const RowsKernels& kernels = RowsKernelsOf(isa);
    for (const size_t n : {size_t{1}, size_t{16}, size_t{41}}) {
      std::vector<Bf16> values(n, ToBf16(-100.0F));
      EXPECT_TRUE(kernels.all_within(values.data(), n, 100.0F));
      for (size_t i = 0; i < n; ++i) {
        for (const float bad : {101.0F, -101.0F, infinity, -infinity, std::nanf("")}) {
          values[i] = ToBf16(bad);
          EXPECT_FALSE(kernels.all_within(values.data(), n, 100.0F)) << IsaName(isa) << i;
          EXPECT_EQ(kernels.all_within(values.data(), n, infinity), !std::isnan(bad));
        }
        values[i] = ToBf16(-100.0F);
      }
    }
    EXPECT_TRUE(kernels.all_within(nullptr, 0, 1.0F));
  }
}

}  // namespace
}  // namespace kvik::codec
