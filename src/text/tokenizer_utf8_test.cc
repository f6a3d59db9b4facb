// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_utf8.h"

#include <gtest/gtest.h>

#include <string>

#include "base/rng.h"
#include "text/tokenizer_testing.h"

namespace kvik::text {
namespace {

using testing::RandomBytes;
using testing::Utf8;

TEST(TokenizerUtf8, EveryCodePoint) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    const std::string bytes = Utf8(c);
    const Utf8Sequence sequence = ReadUtf8(bytes);
    const bool surrogate = c >= 0xD800 && c <= 0xDFFF;
    ASSERT_EQ(sequence.valid, !surrogate) << std::hex << static_cast<uint32_t>(c);
    if (!surrogate) {
      ASSERT_EQ(sequence.bytes, bytes.size());
      ASSERT_EQ(sequence.code_point, c);
      ASSERT_EQ(ReadLastUtf8("a" + bytes).code_point, c);
    }
  }
}

TEST(TokenizerUtf8, BrokenSequences) {
  const auto repaired = [](std::string_view text) {
    std::string out;
    EXPECT_EQ(AppendValidUtf8(text, false, &out), text.size());
    return out;
  };
  EXPECT_EQ(repaired("a\x80z"), "a\uFFFDz");
  EXPECT_EQ(repaired("\xC0\xAF"), "\uFFFD\uFFFD");                      // overlong
  EXPECT_EQ(repaired("\xE2\x82z"), "\uFFFDz");                          // one for what was begun
  EXPECT_EQ(repaired("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");            // surrogate
  EXPECT_EQ(repaired("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");  // above U+10FFFF
  EXPECT_EQ(repaired("\xF0\x9F\x98\xF0\x9F\x98\x80"), "\uFFFD\U0001F600");
  EXPECT_EQ(repaired("\xF0\x9F\x98"), "\uFFFD");

  std::string out;
  EXPECT_EQ(AppendValidUtf8("ab\xF0\x9F", true, &out), 2u);
  EXPECT_EQ(out, "ab");
}

TEST(TokenizerUtf8, RepairIsValidAndKeepsWhatIsValid) {
  constexpr uint64_t kSeed = 17;
  SCOPED_TRACE(kSeed);
  Rng rng(kSeed);
  for (int round = 0; round < 5000; ++round) {
    const std::string bytes = RandomBytes(&rng, rng.Below(24));
    std::string once;
    AppendValidUtf8(bytes, false, &once);
    ASSERT_EQ(ValidUtf8Prefix(once), once.size());
    std::string twice;
    AppendValidUtf8(once, false, &twice);
    ASSERT_EQ(twice, once);
    if (ValidUtf8Prefix(bytes) == bytes.size()) {
      ASSERT_EQ(once, bytes);
    }
  }
}

TEST(TokenizerUtf8, Helpers) {
  EXPECT_EQ(AsciiPrefix("0123456789abcdef\xC3\xA9"), 16u);
  EXPECT_EQ(AsciiPrefix("0123\xC3\xA9"), 4u);
  EXPECT_EQ(ByteOfSpelling("<0x0a>"), 10);
  EXPECT_EQ(ByteOfSpelling("<0xFF>"), 255);
  for (const char* other : {"", "<0xFF", "<0xFG>", "<1x00>", "<0x000>", "0x00"}) {
    EXPECT_EQ(ByteOfSpelling(other), -1) << other;
  }
  EXPECT_EQ(ReplaceEvery("a--b-", "-", "+++"), "a++++++b+++");
}

}  // namespace
}  // namespace kvik::text
