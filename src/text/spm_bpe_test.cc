// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_gguf.h"
#include "text/tokenizer_testing.h"

namespace kvik::text {
namespace {

using ::testing::ElementsAre;
using testing::MakeTokenizer;
using testing::RandomText;

// Ids: 0 <unk>, 1 <s>, 2 </s>, then `pieces` with their scores, then the 256 bytes if wanted.
struct Vocabulary {
  std::vector<std::pair<std::string, float>> pieces;
  bool bytes = true;
};
constexpr TokenId kFirst = 3;

GgufTokenizer Fields(const Vocabulary& vocabulary) {
  GgufTokenizer fields;
  fields.model = "llama";
  fields.bos_id = 1;
  fields.eos_id = 2;
  fields.unk_id = 0;
  fields.tokens = {"<unk>", "<s>", "</s>"};
  fields.token_types = {2, 3, 3};
  fields.scores = {0, 0, 0};
  for (const auto& [piece, score] : vocabulary.pieces) {
    fields.tokens.push_back(piece);
    fields.token_types.push_back(1);
    fields.scores.push_back(score);
  }
  for (int byte = 0; vocabulary.bytes && byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", byte);
    fields.tokens.emplace_back(name);
    fields.token_types.push_back(6);
    fields.scores.push_back(0);
  }
  return fields;
}

std::unique_ptr<Tokenizer> Make(GgufTokenizer fields) {
  auto spec = SpecFromGguf(std::move(fields));
  EXPECT_TRUE(spec) << (spec ? "" : spec.error().message);
  return MakeTokenizer(std::move(*spec));
}

TEST(SentencePiece, HighestScoreFirstThenLeftmost) {
  auto fields = Fields({.pieces = {{"a", -9}, {"b", -9}, {"ab", -1}, {"ba", -1}, {"aba", -3}}});
  fields.add_space_prefix = false;
  const auto tokenizer = Make(fields);
  EXPECT_THAT(tokenizer->Encode("aba"), ElementsAre(kFirst + 4));
  EXPECT_THAT(tokenizer->Encode("abab"), ElementsAre(kFirst + 2, kFirst + 2));
  EXPECT_THAT(tokenizer->Encode("bab"), ElementsAre(kFirst + 3, kFirst + 1));
}

TEST(SentencePiece, SpacePrefixAndBack) {
  const auto tokenizer = Make(Fields({.pieces = {{"▁", -9}, {"a", -9}, {"▁a", -1}}}));
  EXPECT_THAT(tokenizer->Encode("a a"), ElementsAre(kFirst + 2, kFirst + 2));
  EXPECT_THAT(tokenizer->Encode(" a"), ElementsAre(kFirst, kFirst + 2));
  EXPECT_THAT(tokenizer->Encode(""), ElementsAre());
  EXPECT_THAT(tokenizer->Encode("a", {.add_special = true}), ElementsAre(1, kFirst + 2));
  // A recognised token is followed by a new beginning.
  EXPECT_THAT(tokenizer->Encode("<s>a</s>a", {.parse_special = true}),
              ElementsAre(1, kFirst + 2, 2, kFirst + 2));
  for (const char* text : {"a", "a a", " a", "  ", "a  "}) {
    EXPECT_EQ(Decode(*tokenizer, tokenizer->Encode(text)), text);
  }
  EXPECT_EQ(Decode(*tokenizer, std::vector<TokenId>{1, kFirst + 2}), "a");
  // Tokens that go on after a prompt keep their space.
  EXPECT_EQ(Decode(*tokenizer, std::vector<TokenId>{kFirst + 2}, {.at_text_start = false}), " a");
}

TEST(SentencePiece, UnknownCharactersBecomeBytes) {
  auto fields = Fields({.pieces = {{"a", -1}}});
  fields.add_space_prefix = false;
  const auto tokenizer = Make(fields);
  const TokenId byte = kFirst + 1;
  EXPECT_THAT(tokenizer->Encode("aé"), ElementsAre(kFirst, byte + 0xC3, byte + 0xA9));
  EXPECT_EQ(tokenizer->Piece(byte + 0xC3), "\xC3");
  EXPECT_EQ(Decode(*tokenizer, tokenizer->Encode("aé\n")), "aé\n");
  // The name of a byte piece is ordinary text.
  EXPECT_EQ(Decode(*tokenizer, tokenizer->Encode("<0x41>")), "<0x41>");
}

TEST(SentencePiece, WithoutBytesUnknownIsUnk) {
  auto fields = Fields({.pieces = {{"a", -1}}, .bytes = false});
  fields.add_space_prefix = false;
  EXPECT_THAT(Make(fields)->Encode("xéaz"), ElementsAre(0, kFirst, 0));
  fields.unk_id.reset();
  EXPECT_THAT(Make(fields)->Encode("xéaz"), ElementsAre(kFirst));
}

TEST(SentencePiece, UnusedPiecesAreCutAgain) {
  auto fields = Fields({.pieces = {{"a", -9}, {"b", -9}, {"c", -9}, {"ab", -2}, {"abc", -1}}});
  fields.add_space_prefix = false;
  fields.token_types[kFirst + 4] = 5;
  EXPECT_THAT(Make(fields)->Encode("abc"), ElementsAre(kFirst + 3, kFirst + 2));
  fields.token_types[kFirst + 3] = 5;
  EXPECT_THAT(Make(fields)->Encode("abc"), ElementsAre(kFirst, kFirst + 1, kFirst + 2));
}

TEST(SentencePiece, UserDefinedPiecesAreFoundFirst) {
  auto fields = Fields({.pieces = {{"a", -9}, {"aa", -1}, {"a▁a", 0}}});
  fields.add_space_prefix = false;
  fields.token_types[kFirst + 2] = 4;
  const auto tokenizer = Make(fields);
  EXPECT_THAT(tokenizer->Encode("aaa aaa"), ElementsAre(kFirst + 1, kFirst + 2, kFirst + 1));
  EXPECT_EQ(tokenizer->Piece(kFirst + 2), "a a");
}

// The definition on strings: while two neighbours together are a piece, join those with the
// highest score, the leftmost of equals.
std::vector<std::string> Naive(const std::map<std::string, float>& scores,
                               const std::string& text) {
  std::vector<std::string> parts;
  for (size_t pos = 0; pos < text.size();) {
    const size_t bytes = ReadUtf8(std::string_view(text).substr(pos)).bytes;
    parts.push_back(text.substr(pos, bytes));
    pos += bytes;
  }
  while (true) {
    float best_score = -std::numeric_limits<float>::infinity();
    size_t best = parts.size();
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto it = scores.find(parts[i] + parts[i + 1]);
      if (it != scores.end() && it->second > best_score) {
        best_score = it->second;
        best = i;
      }
    }
    if (best == parts.size()) {
      return parts;
    }
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

// Random pieces, also of characters that are none, also with spaces inside or only at the front
// (where texts are cut at spaces): always the definition's result, and the text comes back.
TEST(SentencePiece, EqualsTheDefinition) {
  constexpr uint64_t kSeed = 5;
  SCOPED_TRACE(kSeed);
  Rng rng(kSeed);
  for (int round = 0; round < 60; ++round) {
    const bool spaces_inside = round % 2 == 0;
    const std::vector<std::string> alphabet = {"a", "b", "c", "d", "▁", "中", "é"};
    // Without a piece for the space it would come back as the bytes of U+2581.
    std::map<std::string, float> scores = {{"▁", -30.0F}};
    for (int i = 0; i < 60; ++i) {
      std::string piece = rng.Below(3) == 0 ? "▁" : "";
      const size_t length = 1 + rng.Below(4);
      for (size_t k = 0; k < length; ++k) {
        const std::string& symbol = alphabet[rng.Below(alphabet.size())];
        piece += symbol == "▁" && !spaces_inside ? "a" : symbol;
      }
      scores[piece] = -static_cast<float>(rng.Below(20));  // with ties
    }
    Vocabulary vocabulary;
    vocabulary.pieces.assign(scores.begin(), scores.end());
    auto fields = Fields(vocabulary);
    fields.add_space_prefix = false;
    const auto tokenizer = Make(fields);
    for (int i = 0; i < 20; ++i) {
      const std::string text = RandomText(&rng, rng.Below(70));
      std::vector<std::string> expected;
      for (const std::string& part : Naive(scores, ReplaceEvery(text, " ", kSpaceSymbol))) {
        if (scores.contains(part)) {
          expected.push_back(part);
          continue;
        }
        for (const char c : part) {
          char name[8];
          std::snprintf(name, sizeof(name), "<0x%02X>", static_cast<unsigned char>(c));
          expected.emplace_back(name);
        }
      }
      std::vector<std::string> got;
      const std::vector<TokenId> ids = tokenizer->Encode(text);
      for (const TokenId id : ids) {
        got.emplace_back(tokenizer->Spelling(id));
      }
      ASSERT_EQ(got, expected) << text;
      ASSERT_EQ(Decode(*tokenizer, ids), text);
    }
  }
}

TEST(SentencePiece, LongTextWithoutSpaces) {
  auto fields = Fields({.pieces = {{"a", -9}, {"aa", -2}, {"aaaa", -1}}});
  fields.add_space_prefix = false;
  EXPECT_EQ(Make(fields)->Encode(std::string(200'000, 'a')),
            std::vector<TokenId>(50'000, kFirst + 2));
}

}  // namespace
}  // namespace kvik::text
