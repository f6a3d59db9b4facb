// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/rng.h"
#include "text/detokenizer.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_gguf.h"
#include "text/tokenizer_testing.h"

namespace kvik::text {
namespace {

using testing::ByteLevelSpec;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::MakeTokenizer;
using testing::RandomText;
using testing::SpellBytes;

constexpr TokenId kFirstMerge = 256;

// Strings and ranks, no numbers: what the merges of a file say, read literally.
std::vector<std::string> NaiveWord(const TokenizerSpec& spec, std::string_view bytes) {
  std::vector<std::string> parts;
  for (const char c : bytes) {
    parts.push_back(SpellBytes(std::string(1, c)));
  }
  while (true) {
    size_t best_rank = spec.merges.size();
    size_t best = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (spec.merges[rank].left == parts[i] && spec.merges[rank].right == parts[i + 1]) {
          best_rank = rank;
          best = i;
        }
      }
    }
    if (best_rank == spec.merges.size()) {
      return parts;
    }
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

std::vector<std::string> Spellings(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  std::vector<std::string> spellings;
  for (const TokenId id : ids) {
    spellings.emplace_back(tokenizer.Spelling(id));
  }
  return spellings;
}

TokenizerSpec RandomByteLevelSpec(Rng* rng) {
  std::vector<std::string> pieces = {"a", "b", "c", "d", " ", "\xC3", "\xA9", "\xE4", "\xB8"};
  std::vector<std::pair<std::string, std::string>> merges;
  for (int i = 0; i < 60; ++i) {
    const std::string left = pieces[rng->Below(pieces.size())];
    const std::string right = pieces[rng->Below(pieces.size())];
    if (std::find(pieces.begin(), pieces.end(), left + right) == pieces.end()) {
      merges.emplace_back(left, right);
      pieces.push_back(left + right);
    }
  }
  return ByteLevelSpec(merges);
}

TEST(ByteLevelTokenizer, EqualsTheMergesReadLiterally) {
  constexpr uint64_t kSeed = 2;
  SCOPED_TRACE(kSeed);
  Rng rng(kSeed);
  for (int round = 0; round < 40; ++round) {
    const TokenizerSpec spec = RandomByteLevelSpec(&rng);
    const auto tokenizer = MakeTokenizer(spec);
    for (int i = 0; i < 20; ++i) {
      const std::string text = RandomText(&rng, rng.Below(80));
      ASSERT_EQ(Spellings(*tokenizer, tokenizer->Encode(text)), NaiveWord(spec, text)) << text;
    }
  }
}

TEST(ByteLevelTokenizer, DecodesWhatItEncoded) {
  constexpr uint64_t kSeed = 3;
  SCOPED_TRACE(kSeed);
  Rng rng(kSeed);
  for (const char* name : {"", "gpt-2", "smollm", "qwen2", "llama-bpe", "tekken", "gpt-4o"}) {
    TokenizerSpec spec = RandomByteLevelSpec(&rng);
    spec.pre_tokenizer = NamedPreTokenizer(name).value();
    const auto tokenizer = MakeTokenizer(spec);
    for (int i = 0; i < 100; ++i) {
      const std::string text = RandomText(&rng, rng.Below(100)) + "  \n 12345 It's";
      ASSERT_EQ(Decode(*tokenizer, tokenizer->Encode(text)), text) << name;
    }
  }
}

TEST(ByteLevelTokenizer, WordsAreTokenisedAlone) {
  TokenizerSpec spec = ByteLevelSpec({{"a", " "}, {" ", "b"}});
  const auto whole = MakeTokenizer(spec);
  EXPECT_THAT(whole->Encode("a b"), ElementsAre(kFirstMerge, 'b'));
  spec.pre_tokenizer = NamedPreTokenizer("gpt-2").value();
  const auto words = MakeTokenizer(spec);
  EXPECT_THAT(words->Encode("a b"), ElementsAre('a', kFirstMerge + 1));
}

TEST(ByteLevelTokenizer, IgnoreMergesTakesWholeWordsFirst) {
  // "ab" + "c" is never reached because "bc" comes first; the piece "abc" exists nevertheless.
  TokenizerSpec spec = ByteLevelSpec({{"b", "c"}, {"a", "b"}, {"ab", "c"}});
  EXPECT_THAT(MakeTokenizer(spec)->Encode("abc"), ElementsAre('a', kFirstMerge));
  spec.ignore_merges = true;
  EXPECT_THAT(MakeTokenizer(spec)->Encode("abc"), ElementsAre(kFirstMerge + 2));
}

TEST(ByteLevelTokenizer, MergeWithoutPieceFallsBackToBytes) {
  TokenizerSpec spec = ByteLevelSpec({});
  spec.merges.push_back({"a", "b"});
  EXPECT_THAT(MakeTokenizer(spec)->Encode("abb"), ElementsAre('a', 'b', 'b'));
}

TEST(ByteLevelTokenizer, BytesWithoutPieceAreLost) {
  TokenizerSpec spec = ByteLevelSpec({{"a", "b"}});
  spec.pieces['x'] = "unused";
  spec.types['x'] = TokenType::kUnused;
  EXPECT_THAT(MakeTokenizer(spec)->Encode("axb"), ElementsAre(kFirstMerge));
}

TEST(ByteLevelTokenizer, HundredThousandEqualLetters) {
  TokenizerSpec spec = ByteLevelSpec({{"a", "a"}, {"aa", "aa"}});
  spec.pre_tokenizer = NamedPreTokenizer("qwen2").value();
  const auto tokenizer = MakeTokenizer(spec);
  EXPECT_EQ(tokenizer->Encode(std::string(100'000, 'a')),
            std::vector<TokenId>(25'000, kFirstMerge + 1));
  const std::string spaces(100'000, ' ');
  EXPECT_EQ(Decode(*tokenizer, tokenizer->Encode(spaces)), spaces);
}

TEST(ByteLevelTokenizer, BrokenUtf8IsReadAsReplacementCharacters) {
  const auto tokenizer = MakeTokenizer(ByteLevelSpec({}));
  EXPECT_EQ(tokenizer->Encode("a\x85z\xE2\x82"), tokenizer->Encode("a\uFFFDz\uFFFD"));
  EXPECT_THAT(tokenizer->Encode(""), IsEmpty());
  EXPECT_THAT(tokenizer->Encode(std::string("\0a", 2)), ElementsAre(0, 'a'));
}

TEST(ControlTokens, OnlyWithParseSpecial) {
  TokenizerSpec spec = ByteLevelSpec({{"<", "|"}});
  const auto start = static_cast<TokenId>(spec.pieces.size() - 2);
  for (const char* name : {"gpt-2", "smollm", "qwen2", "llama-bpe"}) {
    spec.pre_tokenizer = NamedPreTokenizer(name).value();
    spec.ignore_merges = std::string_view(name) == "llama-bpe";
    const auto tokenizer = MakeTokenizer(spec);
    const std::vector<TokenId> as_text = tokenizer->Encode("a<|im_start|>b");
    EXPECT_EQ(std::count(as_text.begin(), as_text.end(), start), 0) << name;
    EXPECT_EQ(Decode(*tokenizer, as_text), "a<|im_start|>b");
    EXPECT_THAT(tokenizer->Encode("a<|im_start|>b", {.parse_special = true}),
                ElementsAre('a', start, 'b'));
    // What only begins like one is text either way.
    EXPECT_EQ(tokenizer->Encode("<|im_sta", {.parse_special = true}),
              tokenizer->Encode("<|im_sta"));
  }
}

// Merges that spell a control token do not make one of a user's text.
TEST(ControlTokens, AreNotMadeByMerges) {
  TokenizerSpec spec = ByteLevelSpec({{"<", "s"}, {"<s", ">"}}, {});
  spec.types.back() = TokenType::kControl;
  EXPECT_THAT(MakeTokenizer(spec)->Encode("<s>"), ElementsAre('<', 's', '>'));
}

TEST(UserDefinedTokens, AreRecognisedInAllTextTheLongestFirst) {
  TokenizerSpec spec = ByteLevelSpec({}, {"<x>", "<x>>", "<y>"});
  for (size_t i = spec.types.size() - 3; i < spec.types.size(); ++i) {
    spec.types[i] = TokenType::kUserDefined;
  }
  const auto id = static_cast<TokenId>(spec.pieces.size() - 3);
  const auto tokenizer = MakeTokenizer(spec);
  EXPECT_THAT(tokenizer->Encode("<x>a<x>><<y>"), ElementsAre(id, 'a', id + 1, '<', id + 2));
  EXPECT_FALSE(tokenizer->IsControl(id));
}

TEST(UserDefinedTokens, RulesAtTheEdges) {
  TokenizerSpec spec = ByteLevelSpec({}, {"<l>", "<r>", "word"});
  const auto id = static_cast<TokenId>(spec.pieces.size() - 3);
  for (size_t i = spec.types.size() - 3; i < spec.types.size(); ++i) {
    spec.types[i] = TokenType::kUserDefined;
  }
  spec.added_rules = {{.id = id, .strip_left = true},
                      {.id = id + 1, .strip_right = true},
                      {.id = id + 2, .single_word = true}};
  const auto tokenizer = MakeTokenizer(spec);
  EXPECT_THAT(tokenizer->Encode("a \u3000<l> b"), ElementsAre('a', id, ' ', 'b'));
  EXPECT_THAT(tokenizer->Encode("a <r>\n b"), ElementsAre('a', ' ', id + 1, 'b'));
  EXPECT_THAT(tokenizer->Encode("word-word"), ElementsAre(id + 2, '-', id + 2));
  EXPECT_THAT(tokenizer->Encode("words"), ElementsAre('w', 'o', 'r', 'd', 's'));
  EXPECT_THAT(tokenizer->Encode("_word"), ElementsAre('_', 'w', 'o', 'r', 'd'));
}

TEST(SpecialIds, BosAndEosAreAddedOnce) {
  TokenizerSpec spec = ByteLevelSpec({}, {"<s>", "</s>"});
  const auto bos = static_cast<TokenId>(spec.pieces.size() - 2);
  const TokenId eos = bos + 1;
  spec.bos_id = bos;
  spec.eos_id = eos;
  spec.add_bos = true;
  spec.add_eos = true;
  const auto tokenizer = MakeTokenizer(spec);
  EXPECT_THAT(tokenizer->Encode("a"), ElementsAre('a'));
  EXPECT_THAT(tokenizer->Encode("a", {.add_special = true}), ElementsAre(bos, 'a', eos));
  EXPECT_THAT(tokenizer->Encode("", {.add_special = true}), ElementsAre(bos, eos));
  // A template that wrote them already.
  const EncodeOptions both{.parse_special = true, .add_special = true};
  EXPECT_THAT(tokenizer->Encode("<s>a</s>", both), ElementsAre(bos, 'a', eos));
  EXPECT_THAT(tokenizer->Encode("a<s>", both), ElementsAre(bos, 'a', bos, eos));
  EXPECT_THAT(tokenizer->Encode("</s>a", both), ElementsAre(bos, eos, 'a', eos));
  // A user who types BOS has typed four characters.
  EXPECT_EQ(tokenizer->Encode("<s>", {.add_special = true}).size(), 5u);
}

TEST(SpecialIds, EndIds) {
  TokenizerSpec spec = ByteLevelSpec({}, {"<|im_end|>", "</s>", "<stop>"});
  const auto im_end = static_cast<TokenId>(spec.pieces.size() - 3);
  spec.types[static_cast<size_t>(im_end) + 1] = TokenType::kNormal;  // only spelled like an end
  spec.eos_id = im_end;
  spec.more_end_ids = {im_end + 2};
  const auto tokenizer = MakeTokenizer(spec);
  EXPECT_THAT(tokenizer->end_ids(), ElementsAre(im_end, im_end + 2));
  EXPECT_TRUE(tokenizer->IsEnd(im_end));
  EXPECT_FALSE(tokenizer->IsEnd(im_end + 1));
  EXPECT_FALSE(tokenizer->IsEnd('a'));
}

TEST(Tokenizer, LookUps) {
  const auto tokenizer = MakeTokenizer(ByteLevelSpec({{" ", "a"}}));
  EXPECT_EQ(tokenizer->vocab_size(), 259u);
  EXPECT_EQ(tokenizer->Find("\u0120a"), kFirstMerge);
  EXPECT_EQ(tokenizer->Spelling(kFirstMerge), "\u0120a");
  EXPECT_EQ(tokenizer->Piece(kFirstMerge), " a");
  EXPECT_EQ(tokenizer->Piece(0x85), "\x85");
  EXPECT_EQ(tokenizer->Piece(257), "<|im_start|>");
  EXPECT_TRUE(tokenizer->IsControl(257));
  EXPECT_EQ(tokenizer->Find("nothing"), std::nullopt);
  for (const TokenId outside : {-1, 259, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(tokenizer->Piece(outside), "");
    EXPECT_EQ(tokenizer->Spelling(outside), "");
    EXPECT_FALSE(tokenizer->IsControl(outside));
  }
}

TEST(Tokenizer, RefusesSpecsThatDoNotFit) {
  const TokenizerSpec good = ByteLevelSpec({{"a", "b"}});
  const auto message = [](TokenizerSpec spec) {
    const auto tokenizer = Tokenizer::Create(std::move(spec));
    return tokenizer ? std::string("accepted") : tokenizer.error().message;
  };
  EXPECT_EQ(message(good), "accepted");
  EXPECT_THAT(message({}), HasSubstr("0 tokens"));
  TokenizerSpec spec = good;
  spec.types.pop_back();
  EXPECT_THAT(message(spec), HasSubstr("types"));
  spec = good;
  spec.scores = {1};
  EXPECT_THAT(message(spec), HasSubstr("scores"));
  spec = good;
  spec.eos_id = 259;
  EXPECT_THAT(message(spec), HasSubstr("EOS id 259"));
  spec = good;
  spec.add_bos = true;
  EXPECT_THAT(message(spec), HasSubstr("BOS"));
  spec = good;
  spec.merges.push_back({"", "a"});
  EXPECT_THAT(message(spec), HasSubstr("empty side"));
  spec = good;
  spec.pre_tokenizer = {{.pattern = "(a"}};
  EXPECT_THAT(message(spec), HasSubstr("regular expression"));
  spec = good;
  spec.kind = TokenizerKind::kSentencePieceBpe;
  spec.merges.clear();
  EXPECT_THAT(message(spec), HasSubstr("without merges or scores"));
  spec.scores.assign(spec.pieces.size(), 0);
  spec.scores[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(message(spec), HasSubstr("not a number"));
  spec = good;
  spec.added_rules = {{.id = -5}};
  EXPECT_THAT(message(spec), HasSubstr("added token"));
}

GgufTokenizer SmallGguf() {
  return {.model = "gpt2",
          .pre = "llama-bpe",
          .tokens = {"a", "b", "ab", "<s>"},
          .token_types = {1, 1, 1, 3},
          .scores = {},
          .merges = {"a b"},
          .bos_id = 3,
          .eos_id = 3};
}

TEST(GgufTokenizer, DefaultsOfAFamily) {
  const auto spec = SpecFromGguf(SmallGguf());
  ASSERT_TRUE(spec);
  EXPECT_TRUE(spec->ignore_merges);
  EXPECT_TRUE(spec->add_bos);
  EXPECT_FALSE(spec->add_eos);
  EXPECT_THAT(MakeTokenizer(*spec)->Encode("ab", {.add_special = true}), ElementsAre(3, 2));

  GgufTokenizer says_no = SmallGguf();
  says_no.add_bos = false;
  EXPECT_FALSE(SpecFromGguf(says_no)->add_bos);
  GgufTokenizer other = SmallGguf();
  other.pre = "qwen2";
  EXPECT_FALSE(SpecFromGguf(other)->add_bos);
  EXPECT_FALSE(SpecFromGguf(other)->ignore_merges);
  GgufTokenizer no_id = SmallGguf();
  no_id.bos_id.reset();
  EXPECT_FALSE(SpecFromGguf(no_id)->add_bos);
}

TEST(GgufTokenizer, ErrorsNameTheField) {
  const auto message = [](auto&& change) {
    GgufTokenizer fields = SmallGguf();
    change(fields);
    const auto spec = SpecFromGguf(std::move(fields));
    return spec ? std::string("accepted") : spec.error().message;
  };
  EXPECT_THAT(message([](GgufTokenizer& f) { f.model = "bert"; }),
              HasSubstr("tokenizer.ggml.model is 'bert'"));
  EXPECT_THAT(message([](GgufTokenizer& f) { f.pre = "no\nsuch"; }),
              HasSubstr("tokenizer.ggml.pre is 'no?such'"));
  EXPECT_THAT(message([](GgufTokenizer& f) { f.tokens.clear(); }), HasSubstr("ggml.tokens"));
  EXPECT_THAT(message([](GgufTokenizer& f) { f.token_types.pop_back(); }),
              HasSubstr("token_type has 3 entries for 4"));
  EXPECT_THAT(message([](GgufTokenizer& f) { f.token_types[2] = 7; }),
              HasSubstr("token_type of token 2 is 7"));
  EXPECT_THAT(message([](GgufTokenizer& f) { f.scores = {1}; }), HasSubstr("scores"));
  EXPECT_THAT(message([](GgufTokenizer& f) { f.eos_id = 4; }), HasSubstr("eos_token_id is 4"));
  EXPECT_THAT(message([](GgufTokenizer& f) { f.pad_id = -1; }), HasSubstr("padding_token_id"));
  EXPECT_THAT(message([](GgufTokenizer& f) { f.merges.clear(); }), HasSubstr("ggml.merges"));
  for (const char* merge : {"", "ab", "a ", " b", " "}) {
    EXPECT_THAT(message([&](GgufTokenizer& f) { f.merges = {merge}; }),
                HasSubstr("merges: entry 0"))
        << merge;
  }
}

}  // namespace
}  // namespace kvik::text
