// SPDX-License-Identifier: Apache-2.0
#include "server/choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/testing/scripted_engine.h"

namespace kvik::server {
namespace {

struct Told {
  std::string text;
  std::vector<std::string> pieces;
  ChoiceDelta last;
  int32_t completion_tokens = 0;
};

class ChoiceTest : public ::testing::Test {
 protected:
  // Runs `bytes` through a choice, `per_output` tokens at a time, ended as `finish`.
  Told Run(const std::string& bytes, const GenerationParams& params, size_t per_output = 1,
           engine::FinishReason finish = engine::FinishReason::kLength) {
    Choice choice(*tokenizer_, params);
    Told told;
    for (size_t i = 0; i < bytes.size() && !choice.finished(); i += per_output) {
      engine::RequestOutput output;
      for (size_t k = i; k < std::min(bytes.size(), i + per_output); ++k) {
        output.tokens.push_back({static_cast<unsigned char>(bytes[k]), 0, {}});
      }
      if (i + per_output >= bytes.size()) {
        output.finish = finish;
      }
      told.last = choice.Push(output);
      told.pieces.push_back(told.last.text);
      told.text += told.last.text;
    }
    EXPECT_TRUE(choice.finished());
    told.completion_tokens = choice.completion_tokens();
    return told;
  }
  static GenerationParams Stops(std::vector<std::string> stop) {
    GenerationParams params;
    params.stop = std::move(stop);
    return params;
  }

  const std::unique_ptr<text::Tokenizer> tokenizer_ = testing::MakeByteTokenizer();
};

TEST_F(ChoiceTest, AStopStringIsNeverShownHoweverTheTokensCome) {
  for (size_t per_output = 1; per_output <= 12; ++per_output) {
    const Told told = Run("ABCDEFGHIJK", Stops({"DEFGHIJ"}), per_output);
    EXPECT_EQ(told.text, "ABC");
    EXPECT_EQ(told.last.finish, ChoiceFinish::kStop);
    EXPECT_EQ(std::get<std::string>(told.last.stop_reason), "DEFGHIJ");
    EXPECT_EQ(told.completion_tokens, 10) << "up to the token that completed it";
  }
}

TEST_F(ChoiceTest, ANearMissIsShownInFull) {
  const Told told = Run("ABCDEFGHIX", Stops({"DEFGHIJ"}));
  EXPECT_EQ(told.text, "ABCDEFGHIX");
  EXPECT_EQ(told.last.finish, ChoiceFinish::kLength);
}

TEST_F(ChoiceTest, WhatWasHeldBackComesAtTheEnd) {
  const Told told = Run("ABCDEF", Stops({"DEFGHIJ"}));
  EXPECT_EQ(told.text, "ABCDEF");
  EXPECT_EQ(told.pieces.back(), "DEF");
}

TEST_F(ChoiceTest, IncludesTheStopStringWhenAsked) {
  GenerationParams params = Stops({"CD"});
  params.include_stop_str_in_output = true;
  EXPECT_EQ(Run("ABCDE", params).text, "ABCD");
}

TEST_F(ChoiceTest, NothingStopsBeforeMinTokens) {
  GenerationParams params = Stops({"B"});
  params.min_tokens = 3;
  EXPECT_EQ(Run("ABCAB", params).text, "ABCA");
}

TEST_F(ChoiceTest, CharactersAreNotCut) {
  const Told told = Run("a\xe2\x82\xac", {});
  EXPECT_THAT(told.pieces, ::testing::ElementsAre("a", "", "", "\xe2\x82\xac"));
}

TEST_F(ChoiceTest, ALoneContinuationByteIsAReplacementCharacter) {
  EXPECT_EQ(Run("a\x85z", {}).text, "a\xef\xbf\xbdz");
}

TEST_F(ChoiceTest, MaxTokensMayCutACharacter) {
  EXPECT_EQ(Run("a\xe2\x82", {}).text, "a\xef\xbf\xbd");
}

TEST_F(ChoiceTest, TheStopTokenIsCountedAndNotShown) {
  Choice choice(*tokenizer_, {});
  engine::RequestOutput output;
  output.tokens = {{'o', 0, {}}, {'k', 0, {}}, {257, 0, {}}};
  output.finish = engine::FinishReason::kStop;
  const ChoiceDelta delta = choice.Push(output);
  EXPECT_EQ(delta.text, "ok");
  EXPECT_EQ(delta.finish, ChoiceFinish::kStop);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(delta.stop_reason));
  EXPECT_EQ(choice.completion_tokens(), 3);
}

TEST_F(ChoiceTest, AStopTokenOfTheClientIsNamed) {
  GenerationParams params;
  params.stop_token_ids = {'!'};
  Choice choice(*tokenizer_, params);
  engine::RequestOutput output;
  output.tokens = {{'o', 0, {}}, {'!', 0, {}}};
  output.finish = engine::FinishReason::kStop;
  const ChoiceDelta delta = choice.Push(output);
  EXPECT_EQ(delta.text, "o");
  EXPECT_EQ(std::get<TokenId>(delta.stop_reason), '!');
}

}  // namespace
}  // namespace kvik::server
