// SPDX-License-Identifier: Apache-2.0
#include "base/sha256.h"

#include <gtest/gtest.h>

#include <string_view>

namespace kvik {
namespace {

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(Sha256, KnownDigests) {  // FIPS 180-2, appendix B
  EXPECT_EQ(ToHex(Sha256Of({})),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(ToHex(Sha256Of(Bytes("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256, PiecesEqualTheWholeAndFinishStartsOver) {
  Sha256 hash;
  hash.Update(Bytes("a"));
  hash.Update(Bytes(""));
  hash.Update(Bytes("bc"));
  EXPECT_EQ(hash.Finish(), Sha256Of(Bytes("abc")));
  EXPECT_EQ(hash.Finish(), Sha256Of({}));
}

TEST(Sha256, TheShortHashIsTheFirstEightBytesFromTheLeast) {
  Sha256Digest digest = {};
  for (size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<uint8_t>(i + 1);
  }
  EXPECT_EQ(ShortHash(digest), 0x0807060504030201U);
}

}  // namespace
}  // namespace kvik
