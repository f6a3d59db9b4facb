// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/detokenizer.h"
#include "text/tokenizer_testing.h"

namespace kvik::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::MakeTokenizer;
using ::testing::Not;

// A file with these parts; an empty one is left out.
struct File {
  std::string normalizer;
  std::string pre_tokenizer = R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":true})";
  std::string model =
      R"({"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"Ġ":3,"Ġab":4},"merges":[["a","b"],["Ġ","ab"]]})";
  std::string post_processor;
  std::string decoder = R"({"type":"ByteLevel"})";
  std::string added_tokens =
      R"([{"id":5,"content":"<s>","special":true,"normalized":false},{"id":6,"content":"<t>","special":false,"normalized":false}])";

  [[nodiscard]] std::string Text() const {
    std::string text = R"({"version":"1.0","truncation":null)";
    const auto add = [&](const char* key, const std::string& value) {
      if (!value.empty()) {
        text += std::string(",\"") + key + "\":" + value;
      }
    };
    add("added_tokens", added_tokens);
    add("normalizer", normalizer);
    add("pre_tokenizer", pre_tokenizer);
    add("model", model);
    add("post_processor", post_processor);
    add("decoder", decoder);
    return text + "}";
  }
};

std::unique_ptr<Tokenizer> Load(const File& file) {
  auto spec = ParseTokenizerJson(file.Text());
  EXPECT_TRUE(spec) << (spec ? "" : spec.error().message);
  return spec ? MakeTokenizer(std::move(*spec)) : nullptr;
}

Error ErrorOf(const std::string& json) {
  const auto spec = ParseTokenizerJson(json);
  if (!spec) {
    EXPECT_EQ(spec.error().message.find('\n'), std::string::npos);
    return spec.error();
  }
  return {ErrorCode::kInternal, "accepted"};
}

TEST(TokenizerJson, ByteLevel) {
  const auto tokenizer = Load({});
  EXPECT_THAT(tokenizer->Encode("ab ab<t>"), ElementsAre(2, 4, 6));
  EXPECT_THAT(tokenizer->Encode("<s>", {.parse_special = true}), ElementsAre(5));
  EXPECT_TRUE(tokenizer->IsControl(5));
  EXPECT_FALSE(tokenizer->IsControl(6));
  EXPECT_EQ(Decode(*tokenizer, std::vector<TokenId>{2, 4, 6}), "ab ab<t>");
}

TEST(TokenizerJson, MergesAsStrings) {
  File file;
  file.model = R"({"vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]})";
  EXPECT_THAT(Load(file)->Encode("ab"), ElementsAre(2));
}

TEST(TokenizerJson, SequencesOfSplits) {
  File file;
  file.pre_tokenizer =
      R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"String":"a"},)"
      R"("behavior":"Isolated","invert":false},{"type":"Sequence","pretokenizers":[)"
      R"({"type":"Split","pattern":{"Regex":"x+"},"behavior":"Removed"}]},)"
      R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]})";
  EXPECT_THAT(Load(file)->Encode("axxb"), ElementsAre(0, 1));
}

TEST(TokenizerJson, NormalizerRuns) {
  File file;
  file.normalizer =
      R"({"type":"Sequence","normalizers":[{"type":"Lowercase"},{"type":"Replace",)"
      R"("pattern":{"Regex":"[xy]"},"content":"b"},{"type":"Strip","strip_left":true,"strip_right":true}]})";
  EXPECT_THAT(Load(file)->Encode(" AY "), ElementsAre(2));
}

TEST(TokenizerJson, SentencePieceWithBytes) {
  File file;
  file.normalizer = R"({"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},)"
                    R"({"type":"Replace","pattern":{"String":" "},"content":"▁"}]})";
  file.pre_tokenizer = "null";
  file.model = R"({"type":"BPE","unk_token":"<unk>","fuse_unk":true,"byte_fallback":true,)"
               R"("vocab":{"<unk>":0,"▁":1,"a":2,"▁a":3,"<0xC3>":4,"<0xA9>":5},"merges":["▁ a"]})";
  file.decoder = R"({"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},)"
                 R"("content":" "},{"type":"ByteFallback"},{"type":"Fuse"},)"
                 R"({"type":"Strip","content":" ","start":1,"stop":0}]})";
  file.added_tokens = R"([{"id":0,"content":"<unk>","special":true,"normalized":false}])";
  const auto tokenizer = Load(file);
  EXPECT_THAT(tokenizer->Encode("a aé"), ElementsAre(3, 3, 4, 5));
  EXPECT_THAT(tokenizer->Encode("az!"), ElementsAre(3, 0));
  EXPECT_EQ(Decode(*tokenizer, std::vector<TokenId>{3, 3, 4, 5}), "a aé");
  EXPECT_EQ(tokenizer->unk_id(), 0);
}

TEST(TokenizerJson, Metaspace) {
  File file;
  file.pre_tokenizer =
      R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":true})";
  file.model = R"({"vocab":{"▁":0,"a":1,"▁a":2},"merges":["▁ a"]})";
  file.decoder = R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":true})";
  const auto tokenizer = Load(file);
  EXPECT_THAT(tokenizer->Encode("a a<t>a"), ElementsAre(2, 2, 6, 1));
  EXPECT_EQ(Decode(*tokenizer, std::vector<TokenId>{2, 2}), "a a");
}

TEST(TokenizerJson, PostProcessorGivesBosAndEos) {
  File file;
  file.post_processor =
      R"({"type":"Sequence","processors":[{"type":"ByteLevel"},{"type":"TemplateProcessing",)"
      R"("single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],)"
      R"("special_tokens":{"<s>":{"id":"<s>","ids":[5],"tokens":["<s>"]}}}]})";
  EXPECT_THAT(Load(file)->Encode("a", {.add_special = true}), ElementsAre(5, 0));
  file.post_processor = R"({"type":"RobertaProcessing","cls":["<s>",5],"sep":["<t>",6]})";
  EXPECT_THAT(Load(file)->Encode("a", {.add_special = true}), ElementsAre(5, 0, 6));
}

TEST(TokenizerJson, UnknownComponentsAreNamed) {
  const auto message = [](auto&& change) {
    File file;
    change(file);
    const Error error = ErrorOf(file.Text());
    EXPECT_EQ(error.code, ErrorCode::kUnsupported) << error.message;
    return error.message;
  };
  EXPECT_THAT(message([](File& f) { f.normalizer = R"({"type":"Precompiled"})"; }),
              HasSubstr("normalizer 'Precompiled'"));
  EXPECT_THAT(message([](File& f) { f.pre_tokenizer = R"({"type":"UnicodeScripts"})"; }),
              HasSubstr("pre_tokenizer 'UnicodeScripts'"));
  EXPECT_THAT(message([](File& f) { f.model = R"({"type":"Unigram","vocab":[]})"; }),
              HasSubstr("type 'Unigram'"));
  EXPECT_THAT(message([](File& f) { f.decoder = R"({"type":"CTC"})"; }),
              HasSubstr("decoder 'CTC'"));
  EXPECT_THAT(message([](File& f) { f.post_processor = R"({"type":"Odd"})"; }),
              HasSubstr("post_processor 'Odd'"));
  EXPECT_THAT(message([](File& f) {
                f.model = R"({"end_of_word_suffix":"</w>","vocab":{"a":0},"merges":["a a"]})";
              }),
              HasSubstr("end_of_word_suffix '</w>'"));
  EXPECT_THAT(message([](File& f) {
                f.pre_tokenizer = R"({"type":"Split","pattern":{"String":"a"},"behavior":"Odd"})";
              }),
              HasSubstr("behavior 'Odd'"));
  EXPECT_THAT(message([](File& f) {
                f.pre_tokenizer = R"({"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},)"
                                  R"({"type":"Whitespace"}]})";
              }),
              HasSubstr("after ByteLevel"));
}

TEST(TokenizerJson, BrokenFilesAreErrors) {
  const auto is_corrupt = [](const std::string& json) {
    const Error error = ErrorOf(json);
    EXPECT_EQ(error.code, ErrorCode::kCorrupt) << error.message;
    return error.message;
  };
  is_corrupt("");
  is_corrupt("[]");
  is_corrupt("{");
  is_corrupt("\xFF");
  EXPECT_THAT(is_corrupt("{}"), HasSubstr("model"));
  EXPECT_THAT(is_corrupt(std::string(100'000, '[')), HasSubstr("nests"));
  EXPECT_THAT(is_corrupt(R"({"model":{"vocab":[]}})"), HasSubstr("model.vocab"));
  EXPECT_THAT(is_corrupt(R"({"model":{"vocab":{"a":0}}})"), HasSubstr("model.merges"));
  for (const char* merges :
       {R"(["a"])", R"(["a b c"])", R"([["a"]])", R"([["a",1]])", "[7]", "{}"}) {
    EXPECT_THAT(is_corrupt(std::string(R"({"model":{"vocab":{"a":0},"merges":)") + merges + "}}"),
                HasSubstr("model.merges"))
        << merges;
  }
  // An id that asks for memory the file does not pay for.
  for (const char* id : {"4000000000", "70000", "-1", "0.5", "\"0\"", "1e30", "null"}) {
    EXPECT_THAT(is_corrupt(std::string(R"({"model":{"vocab":{"a":)") + id + R"(},"merges":[]}})"),
                HasSubstr("model.vocab"))
        << id;
  }
  File file;
  file.added_tokens = R"([{"content":"x"}])";
  EXPECT_THAT(is_corrupt(file.Text()), HasSubstr("added_tokens"));
  file = {};
  file.normalizer = "7";
  EXPECT_THAT(is_corrupt(file.Text()), HasSubstr("normalizer"));
  file.normalizer = R"({"type":"Prepend","prepend":7})";
  EXPECT_THAT(is_corrupt(file.Text()), HasSubstr("normalizer.prepend"));
}

// Ids need not be contiguous; the gaps are no tokens of text.
TEST(TokenizerJson, GapsBetweenIds) {
  File file;
  file.added_tokens = R"([{"id":9,"content":"<s>","special":true,"normalized":false}])";
  const auto tokenizer = Load(file);
  EXPECT_EQ(tokenizer->vocab_size(), 10u);
  EXPECT_EQ(tokenizer->Piece(7), "");
  EXPECT_EQ(tokenizer->Piece(9), "<s>");
  EXPECT_EQ(tokenizer->Find(""), std::nullopt);
}

}  // namespace
}  // namespace kvik::text
