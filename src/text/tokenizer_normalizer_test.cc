// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_normalizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kvik::text {
namespace {

using Kind = NormalizerStep::Kind;
using ::testing::HasSubstr;

std::string Normalize(std::vector<NormalizerStep> steps, std::string_view text) {
  const auto normalizer = Normalizer::Compile(std::move(steps));
  EXPECT_TRUE(normalizer) << (normalizer ? "" : normalizer.error().message);
  return normalizer->Apply(text);
}

TEST(Normalizer, UnicodeForms) {
  EXPECT_EQ(Normalize({{.kind = Kind::kNfc}}, "e\u0301 \uFB01"), "\u00E9 \uFB01");
  EXPECT_EQ(Normalize({{.kind = Kind::kNfd}}, "\u00E9 \uFB01"), "e\u0301 \uFB01");
  EXPECT_EQ(Normalize({{.kind = Kind::kNfkc}}, "e\u0301 \uFB01"), "\u00E9 fi");
  EXPECT_EQ(Normalize({{.kind = Kind::kNfkd}}, "\u00E9 \uFB01"), "e\u0301 fi");
  EXPECT_EQ(Normalize({{.kind = Kind::kNfc}}, "\u1112\u1161\u11AB"), "\uD55C");
  EXPECT_EQ(Normalize({{.kind = Kind::kNfc}}, std::string("a\0\u00E9", 4)),
            std::string("a\0\u00E9", 4));
}

TEST(Normalizer, Cases) {
  EXPECT_EQ(Normalize({{.kind = Kind::kLowercase}}, "ABC\u00C9\u0130\u03A3"),
            "abc\u00E9i\u0307\u03C3");
  EXPECT_EQ(Normalize({{.kind = Kind::kStripAccents}}, "e\u0301\u0903x"), "ex");
}

TEST(Normalizer, StripPrependReplace) {
  EXPECT_EQ(Normalize({{.kind = Kind::kStrip}}, " \u3000 a b \n"), "a b");
  EXPECT_EQ(Normalize({{.kind = Kind::kStrip, .strip_left = false}}, " a "), " a");
  EXPECT_EQ(Normalize({{.kind = Kind::kStrip}}, "  "), "");
  const std::vector<NormalizerStep> llama = {
      {.kind = Kind::kPrepend, .content = "▁"},
      {.kind = Kind::kReplace, .pattern = " ", .content = "▁"}};
  EXPECT_EQ(Normalize(llama, "a b"), "▁a▁b");
  EXPECT_EQ(Normalize(llama, ""), "");
  EXPECT_EQ(
      Normalize({{.kind = Kind::kReplaceRegex, .pattern = " {2,}", .content = "_"}}, "a  b c   "),
      "a_b c_");
  EXPECT_EQ(Normalize({{.kind = Kind::kReplace, .pattern = "aa", .content = ""}}, "aaaab"), "b");
}

TEST(Normalizer, RefusesWhatWouldExplode) {
  const auto message = [](std::vector<NormalizerStep> steps) {
    const auto normalizer = Normalizer::Compile(std::move(steps));
    return normalizer ? std::string("accepted") : normalizer.error().message;
  };
  const NormalizerStep grow{.kind = Kind::kReplace, .pattern = "a", .content = "aaaaaaaaaa"};
  EXPECT_EQ(message({grow, grow, grow}), "accepted");
  EXPECT_THAT(message({grow, grow, grow, grow}), HasSubstr("times as long"));
  EXPECT_THAT(message({{.kind = Kind::kReplace, .pattern = "", .content = "x"}}),
              HasSubstr("empty pattern"));
  EXPECT_THAT(message({{.kind = Kind::kReplaceRegex, .pattern = "(", .content = "x"}}),
              HasSubstr("regular expression"));
  EXPECT_THAT(message({{.kind = Kind::kPrepend, .content = "\xFF"}}), HasSubstr("not UTF-8"));
}

}  // namespace
}  // namespace kvik::text
