// SPDX-License-Identifier: Apache-2.0
#include "codec/packing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/rng.h"
#include "codec/testing/coder_reference.h"

namespace kvik::codec {
namespace {

TEST(Packing, WastesLittle) {
  for (int alphabet = 2; alphabet <= 128; ++alphabet) {
    const PackShape& shape = PackShapeOf(alphabet);
    const double bits = 8.0 * shape.word_bytes / shape.digits;
    EXPECT_LE(bits, 1.055 * std::log2(alphabet) + 1e-9) << alphabet;
    if ((alphabet & (alphabet - 1)) == 0) {
      EXPECT_DOUBLE_EQ(bits, std::log2(alphabet));
    }
  }
  EXPECT_EQ(PackedBytes(20, 3), 4U);
  EXPECT_EQ(PackedBytes(1000, 16), 500U);
  EXPECT_EQ(PackedBytes(0, 7), 0U);
  EXPECT_EQ(PackedBytes(1000, 200), 1000U);
}

TEST(Packing, EveryIsaAndAlphabetWritesTheReferencesBytesAndReadsThemBack) {
  constexpr uint64_t kSeed = 30;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  Rng rng(kSeed);
  for (int alphabet = 2; alphabet <= 256; ++alphabet) {
    for (const size_t n : {size_t{0}, size_t{1}, size_t{7}, size_t{64}, size_t{511}, size_t{1024},
                           size_t{1500 + rng.Below(800)}}) {
      std::vector<uint8_t> symbols(n);
      for (auto& symbol : symbols) {
        symbol =
            static_cast<uint8_t>(rng.Below(8) == 0 ? static_cast<uint64_t>(alphabet - 1)
                                                   : rng.Below(static_cast<uint64_t>(alphabet)));
      }
      const auto expected = testing::ReferencePack(symbols, alphabet);
      ASSERT_EQ(expected.size(), PackedBytes(n, alphabet));
      for (const Isa isa : SupportedIsas()) {
        std::vector<std::byte> packed(expected.size());
        PackSymbols(isa, symbols, alphabet, packed);
        ASSERT_EQ(packed, expected) << IsaName(isa) << ", alphabet " << alphabet << ", n " << n;
        std::vector<uint8_t> unpacked(n);
        ASSERT_TRUE(UnpackSymbols(isa, packed, alphabet, unpacked).has_value());
        ASSERT_EQ(unpacked, symbols) << IsaName(isa) << ", alphabet " << alphabet << ", n " << n;
      }
    }
  }
}

TEST(Packing, AnyBytesGiveSymbolsOfTheAlphabetOrAreRefused) {
  Rng rng(31);
  for (int alphabet = 2; alphabet <= 256; ++alphabet) {
    std::vector<uint8_t> symbols(700);
    std::vector<std::byte> bytes(PackedBytes(symbols.size(), alphabet));
    for (auto& byte : bytes) {
      byte = static_cast<std::byte>(rng.Below(3) == 0 ? 255 : rng.Next());
    }
    for (const Isa isa : SupportedIsas()) {
      const auto done = UnpackSymbols(isa, bytes, alphabet, symbols);
      if (done.has_value()) {
        for (const uint8_t symbol : symbols) {
          ASSERT_LT(symbol, alphabet);
        }
      } else {
        ASSERT_EQ(done.error().code, ErrorCode::kCorrupt);
      }
    }
    EXPECT_FALSE(
        UnpackSymbols(Isa::kScalar, std::span(bytes).first(bytes.size() - 1), alphabet, symbols)
            .has_value());
  }
}

}  // namespace
}  // namespace kvik::codec
