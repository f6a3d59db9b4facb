// SPDX-License-Identifier: Apache-2.0
#include "text/pretokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/rng.h"
#include "text/tokenizer_testing.h"

namespace kvik::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> SplitAll(std::vector<PreTokenizerStep> steps, std::string text,
                                  bool at_start = true) {
  const auto pre_tokenizer = PreTokenizer::Compile(std::move(steps));
  EXPECT_TRUE(pre_tokenizer) << (pre_tokenizer ? "" : pre_tokenizer.error().message);
  const Words words = pre_tokenizer->Split(std::move(text), at_start);
  std::vector<std::string> out;
  for (const auto& [begin, end] : words.ranges) {
    EXPECT_LT(begin, end);
    out.push_back(words.text.substr(begin, end - begin));
  }
  return out;
}

std::vector<std::string> Named(const char* name, std::string text) {
  return SplitAll(NamedPreTokenizer(name).value(), std::move(text));
}

TEST(PreTokenizer, Gpt2) {
  EXPECT_THAT(Named("gpt-2", "It's 2024,  ok?\n\n x"),
              ElementsAre("It", "'s", " 2024", ",", " ", " ok", "?", "\n\n", " x"));
  EXPECT_THAT(Named("gpt-2", "I'LL"), ElementsAre("I", "'", "LL"));
  EXPECT_THAT(Named("gpt-2", "a   "), ElementsAre("a", "   "));
}

TEST(PreTokenizer, SmolLmTakesDigitsOneByOne) {
  EXPECT_THAT(Named("smollm", "in 2024½ok"), ElementsAre("in", " ", "2", "0", "2", "4", "½", "ok"));
}

TEST(PreTokenizer, Qwen2) {
  EXPECT_THAT(Named("qwen2", "I'LL say (hello) 123!\r\n\n  x"),
              ElementsAre("I", "'LL", " say", " (", "hello", ")", " ", "1", "2", "3", "!\r\n\n",
                          " ", " x"));
  EXPECT_THAT(Named("qwen2", "  \n  y"), ElementsAre("  \n", " ", " y"));
}

TEST(PreTokenizer, Llama3TakesDigitsByThree) {
  EXPECT_THAT(Named("llama-bpe", "x12345 'tis"), ElementsAre("x", "123", "45", " '", "tis"));
}

TEST(PreTokenizer, CaseAwareFamilies) {
  EXPECT_THAT(Named("tekken", "helloWorld's 12"),
              ElementsAre("hello", "World", "'s", " ", "1", "2"));
  EXPECT_THAT(Named("gpt-4o", "helloWorld's 1234"),
              ElementsAre("hello", "World's", " ", "123", "4"));
}

TEST(PreTokenizer, DefaultCutsPunctuationAndThreeDigits) {
  EXPECT_THAT(Named("default", "a+b 1234"), ElementsAre("a", "+", "b", " ", "123", "4"));
  EXPECT_FALSE(NamedPreTokenizer("no-such-name").has_value());
}

// U+180E is no white space any more, U+0085 is.
TEST(PreTokenizer, WhiteSpaceIsUnicodes) {
  EXPECT_THAT(Named("gpt-2", "a\u180E\u180Eb"), ElementsAre("a", "\u180E\u180E", "b"));
  EXPECT_THAT(SplitAll({{.pattern = R"(\s+)", .behavior = SplitBehavior::kRemoved}},
                       "a\u180Eb\u0085\u2003c"),
              ElementsAre("a\u180Eb", "c"));
  EXPECT_THAT(SplitAll({{.pattern = R"([^\s]+)", .behavior = SplitBehavior::kRemoved}},
                       "a\u180Eb\u0085\u2003c"),
              ElementsAre("\u0085\u2003"));
  EXPECT_THAT(SplitAll({{.pattern = R"(\S)", .behavior = SplitBehavior::kRemoved}}, "\u180E "),
              ElementsAre(" "));
}

TEST(PreTokenizer, WhatHappensToDelimiters) {
  const auto split = [](SplitBehavior behavior, bool invert = false) {
    return SplitAll({{.pattern = "-", .behavior = behavior, .invert = invert}}, "-a--b-");
  };
  EXPECT_THAT(split(SplitBehavior::kRemoved), ElementsAre("a", "b"));
  EXPECT_THAT(split(SplitBehavior::kIsolated), ElementsAre("-", "a", "-", "-", "b", "-"));
  EXPECT_THAT(split(SplitBehavior::kMergedWithPrevious), ElementsAre("-", "a-", "-", "b-"));
  EXPECT_THAT(split(SplitBehavior::kMergedWithNext), ElementsAre("-a", "-", "-b", "-"));
  EXPECT_THAT(split(SplitBehavior::kContiguous), ElementsAre("-", "a", "--", "b", "-"));
  EXPECT_THAT(split(SplitBehavior::kRemoved, true), ElementsAre("-", "-", "-", "-"));
}

TEST(PreTokenizer, Metaspace) {
  PreTokenizerStep step{.kind = PreTokenizerStep::Kind::kMetaspace};
  EXPECT_THAT(SplitAll({step}, "a  b"), ElementsAre("▁a", "▁", "▁b"));
  EXPECT_THAT(SplitAll({step}, " a"), ElementsAre("▁a"));
  step.split = false;
  EXPECT_THAT(SplitAll({step}, "a  b"), ElementsAre("▁a▁▁b"));
  step.prepend = PreTokenizerStep::Prepend::kFirst;
  EXPECT_THAT(SplitAll({step}, "a", true), ElementsAre("▁a"));
  EXPECT_THAT(SplitAll({step}, "a", false), ElementsAre("a"));
  step.prepend = PreTokenizerStep::Prepend::kNever;
  EXPECT_THAT(SplitAll({step}, "a"), ElementsAre("a"));
}

TEST(PreTokenizer, PrefixSpace) {
  const PreTokenizerStep step{.kind = PreTokenizerStep::Kind::kPrefixSpace};
  EXPECT_THAT(SplitAll({step}, "a b"), ElementsAre(" a b"));
  EXPECT_THAT(SplitAll({step}, "\na"), ElementsAre("\na"));
}

TEST(PreTokenizer, QuotedTextMatchesItself) {
  const std::string text = "a.*\\E[x]\n\u20AC|^$ #";
  EXPECT_THAT(SplitAll({{.pattern = TokenizerRegex::Quote(text)}}, "1" + text + "2"),
              ElementsAre("1", text, "2"));
}

TEST(PreTokenizer, BadPatternsAreErrors) {
  for (const std::string pattern : {"(", "[a", "\xFF", "a{2,1}", "\\C"}) {
    const auto compiled = PreTokenizer::Compile({{.pattern = pattern}});
    ASSERT_FALSE(compiled) << pattern;
    EXPECT_EQ(compiled.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(compiled.error().message, HasSubstr("regular expression"));
  }
}

TEST(PreTokenizer, MatchesOfNothingMakeProgress) {
  EXPECT_THAT(SplitAll({{.pattern = "x*"}}, "a\u20ACxxb"), ElementsAre("a\u20AC", "xx", "b"));
}

// Splits that remove nothing lose nothing, whatever the text.
TEST(PreTokenizer, WordsTogetherAreTheText) {
  constexpr uint64_t kSeed = 13;
  SCOPED_TRACE(kSeed);
  Rng rng(kSeed);
  for (const char* name : {"", "gpt-2", "smollm", "qwen2", "llama-bpe", "tekken", "gpt-4o"}) {
    for (int i = 0; i < 50; ++i) {
      const std::string text = testing::RandomText(&rng, rng.Below(60));
      std::string joined;
      for (const std::string& word : Named(name, text)) {
        joined += word;
      }
      ASSERT_EQ(joined, text) << name;
    }
  }
}

}  // namespace
}  // namespace kvik::text
