// SPDX-License-Identifier: Apache-2.0
#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/rng.h"
#include "text/tokenizer_testing.h"

namespace kvik::text {
namespace {

using testing::ByteLevelSpec;
using testing::MakeTokenizer;
using testing::RandomBytes;
using testing::SpellBytes;

TEST(Detokenizer, HoldsBackPartsOfCharacters) {
  const auto tokenizer = MakeTokenizer(ByteLevelSpec({}));
  Detokenizer detokenizer(*tokenizer);
  EXPECT_EQ(detokenizer.Push('a'), "a");
  EXPECT_EQ(detokenizer.Push(0xF0), "");
  EXPECT_EQ(detokenizer.Push(0x9F), "");
  EXPECT_EQ(detokenizer.Push(0x98), "");
  EXPECT_EQ(detokenizer.Push(0x80), "😀");
  EXPECT_EQ(detokenizer.Flush(), "");
}

TEST(Detokenizer, LoneByteIsAReplacementCharacter) {
  const auto tokenizer = MakeTokenizer(ByteLevelSpec({}));
  Detokenizer detokenizer(*tokenizer);
  EXPECT_EQ(detokenizer.Push(0x85), "\uFFFD");
  // Begun and then broken off: one for the part, and the next character is kept.
  EXPECT_EQ(detokenizer.Push(0xE2), "");
  EXPECT_EQ(detokenizer.Push(0x82), "");
  EXPECT_EQ(detokenizer.Push('z'), "\uFFFDz");
  // A surrogate and an overlong form are no characters: each byte is one.
  EXPECT_EQ(detokenizer.Push(0xED), "");
  EXPECT_EQ(detokenizer.Push(0xA0), "\uFFFD\uFFFD");
  EXPECT_EQ(detokenizer.Push(0xC0), "\uFFFD");
}

TEST(Detokenizer, TheEndMayCutACharacter) {
  const auto tokenizer = MakeTokenizer(ByteLevelSpec({}));
  Detokenizer detokenizer(*tokenizer);
  EXPECT_EQ(detokenizer.Push(0xE2), "");
  EXPECT_EQ(detokenizer.Push(0x82), "");
  EXPECT_EQ(detokenizer.Flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.Flush(), "");
  EXPECT_EQ(detokenizer.Push('a'), "a");
}

TEST(Detokenizer, SkipsControlTokensAndIdsThatDoNotExist) {
  const auto tokenizer = MakeTokenizer(ByteLevelSpec({}, {"<|im_end|>"}));
  const std::vector<TokenId> ids = {'a', 256, 'b', 257, -1, 0xE2, 256, 0x82, 0xAC};
  EXPECT_EQ(Decode(*tokenizer, ids), "ab€");
  EXPECT_EQ(Decode(*tokenizer, ids, {.skip_special = false}),
            "a<|im_end|>b\uFFFD<|im_end|>\uFFFD\uFFFD");
}

// Pieces of 1 to 5 random bytes, broken in every way: each text handed out is valid UTF-8, and all
// of them together are what decoding everything at once gives.
TEST(Detokenizer, PiecesTogetherAreTheWhole) {
  constexpr uint64_t kSeed = 7;
  SCOPED_TRACE(kSeed);
  Rng rng(kSeed);
  std::vector<std::pair<std::string, std::string>> merges;
  for (int i = 0; i < 300; ++i) {
    merges.emplace_back(RandomBytes(&rng, 1 + rng.Below(2)), RandomBytes(&rng, 1 + rng.Below(3)));
  }
  TokenizerSpec spec = ByteLevelSpec(merges);
  spec.strip_leading_space = true;
  const auto tokenizer = MakeTokenizer(spec);
  for (int round = 0; round < 2000; ++round) {
    const DetokenizerOptions options{.skip_special = rng.Below(2) == 0,
                                     .at_text_start = rng.Below(2) == 0};
    std::vector<TokenId> ids;
    std::string joined;
    Detokenizer detokenizer(*tokenizer, options);
    const size_t count = rng.Below(12);
    for (size_t i = 0; i < count; ++i) {
      ids.push_back(static_cast<TokenId>(rng.Below(4) == 0
                                             ? rng.Below(tokenizer->vocab_size())
                                             : 256 + rng.Below(tokenizer->vocab_size() - 256)));
      const std::string text = detokenizer.Push(ids.back());
      ASSERT_EQ(ValidUtf8Prefix(text), text.size()) << "round " << round;
      joined += text;
    }
    joined += detokenizer.Flush();
    ASSERT_EQ(joined, Decode(*tokenizer, ids, options)) << "round " << round;
  }
}

}  // namespace
}  // namespace kvik::text
