// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "base/rng.h"

namespace kvik {
namespace {

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(Crc32c, KnownValues) {
  // RFC 3720, appendix B.4, and the check value of the CRC catalogue.
  EXPECT_EQ(Crc32c(Bytes("123456789")), 0xE3069283U);
  EXPECT_EQ(Crc32c(std::vector<std::byte>(32, std::byte{0})), 0x8A9136AAU);
  EXPECT_EQ(Crc32c(std::vector<std::byte>(32, std::byte{0xFF})), 0x62A8AB43U);
  EXPECT_EQ(Crc32c({}), 0U);
}

TEST(Crc32c, InstructionAndTableAgreeOnEveryLengthAndSplit) {
  Rng rng(7);
  std::vector<std::byte> bytes(3 * 3 * 1024 + 17);
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(rng.Below(256));
  }
  const std::span<const std::byte> all(bytes);
  for (size_t n = 0; n <= bytes.size(); n += n < 64 ? 1 : 1 + rng.Below(257)) {
    const auto some = all.first(n);
    const uint32_t whole = Crc32cReference(some);
    ASSERT_EQ(Crc32c(some), whole) << n;
    const size_t cut = rng.Below(n + 1);
    ASSERT_EQ(Crc32c(some.subspan(cut), Crc32c(some.first(cut))), whole) << n << " at " << cut;
  }
}

}  // namespace
}  // namespace kvik
