// SPDX-License-Identifier: Apache-2.0
// Plans: what the generators make.
#include "workload/load_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "workload/agent_load.h"
#include "workload/multi_turn.h"
#include "workload/token_load.h"
#include "workload/trace_load.h"

namespace kvik::workload {
namespace {

std::vector<TokenId> Alphabet() {
  std::vector<TokenId> alphabet(200);
  std::iota(alphabet.begin(), alphabet.end(), 10);
  return alphabet;
}

std::vector<TokenId> Tokens(const std::vector<TokenRun>& runs) {
  std::vector<TokenId> tokens;
  for (const TokenRun& run : runs) {
    AppendTokens(run, Alphabet(), tokens);
  }
  return tokens;
}
std::vector<TokenId> PromptTokens(const PlannedCall& call) {
  return Tokens(std::get<std::vector<TokenRun>>(call.prompt));
}
std::vector<TokenId> OutputTokens(const PlannedCall& call) {
  return Tokens({std::get<TokenRun>(call.output)});
}
bool BeginsWith(const std::vector<TokenId>& tokens, const std::vector<TokenId>& beginning) {
  return tokens.size() >= beginning.size() &&
         std::equal(beginning.begin(), beginning.end(), tokens.begin());
}

TEST(TokenRuns, AreFunctionsOfTheirContentAndOfNothingElse) {
  const std::vector<TokenId> run = Tokens({{7, 100}});
  EXPECT_EQ(run, Tokens({{7, 100}}));
  EXPECT_TRUE(BeginsWith(run, Tokens({{7, 40}})));
  EXPECT_NE(run, Tokens({{8, 100}}));
  EXPECT_NE(ContentOf(1, 2, 3, 4), ContentOf(1, 2, 4, 3));
  EXPECT_THAT(run, testing::Each(testing::AllOf(testing::Ge(10), testing::Lt(210))));
}

TEST(PlanRandom, LengthsSpreadAroundTheirMeanAndNothingIsShared) {
  for (const uint64_t seed : {1, 2, 3}) {
    const LoadPlan plan = PlanRandom(
        {.requests = 2000, .input_tokens = 100, .output_tokens = 40, .spread = 0.5, .seed = seed});
    ASSERT_EQ(plan.calls(), 2000U);
    double input = 0;
    double output = 0;
    std::set<TokenId> firsts;
    for (const PlannedSession& session : plan.sessions) {
      const std::vector<TokenId> tokens = PromptTokens(session.calls[0]);
      EXPECT_GE(tokens.size(), 50U);
      EXPECT_LE(tokens.size(), 150U);
      input += static_cast<double>(tokens.size()) / 2000;
      output += session.calls[0].max_tokens / 2000.0;
      EXPECT_EQ(std::get<TokenRun>(session.calls[0].output).tokens, session.calls[0].max_tokens);
      firsts.insert(tokens[0]);
    }
    EXPECT_NEAR(input, 100, 2.5) << "seed " << seed;
    EXPECT_NEAR(output, 40, 1.2) << "seed " << seed;
    EXPECT_GT(firsts.size(), 150U) << "seed " << seed;
  }
}

TEST(PlanRandom, PrefixesAreThoseOfTheirGroup) {
  const LoadPlan plan = PlanRandom(
      {.requests = 60, .input_tokens = 10, .prefix_tokens = 50, .prefixes = 3, .seed = 5});
  std::set<std::vector<TokenId>> prefixes;
  for (const PlannedSession& session : plan.sessions) {
    std::vector<TokenId> tokens = PromptTokens(session.calls[0]);
    ASSERT_EQ(tokens.size(), 60U);
    tokens.resize(50);
    prefixes.insert(tokens);
  }
  EXPECT_EQ(prefixes.size(), 3U);
}

TEST(PlanSharedDocs, EveryRequestHasDifferentDocumentsInAnyOrder) {
  const LoadPlan plan = PlanSharedDocs({.requests = 300,
                                        .documents = 5,
                                        .documents_per_request = 3,
                                        .document_tokens = 20,
                                        .question_tokens = 4});
  std::set<std::vector<uint64_t>> orders;
  std::set<uint64_t> documents;
  for (const PlannedSession& session : plan.sessions) {
    const auto& runs = std::get<std::vector<TokenRun>>(session.calls[0].prompt);
    ASSERT_EQ(runs.size(), 4U);
    const std::vector<uint64_t> order = {runs[0].content, runs[1].content, runs[2].content};
    EXPECT_EQ(std::set<uint64_t>(order.begin(), order.end()).size(), 3U);
    documents.insert(order.begin(), order.end());
    orders.insert(order);
  }
  EXPECT_EQ(documents.size(), 5U);
  EXPECT_EQ(orders.size(), 60U) << "5 x 4 x 3 orders, and 300 requests see them all";
}

TEST(PlanLongContext, ATurnBeginsWithTheTurnBeforeAndItsAnswer) {
  LongContextOptions options = *LongContextNamed("loogle:5");
  options.requests = 10;
  options.scale = 32;
  const LoadPlan plan = PlanLongContext(options);
  ASSERT_EQ(plan.sessions.size(), 2U);
  const std::vector<TokenId> shared = Tokens({{ContentOf(0, 6), 16}});
  for (const PlannedSession& session : plan.sessions) {
    ASSERT_EQ(session.calls.size(), 5U);
    EXPECT_TRUE(BeginsWith(PromptTokens(session.calls[0]), shared));
    for (size_t i = 1; i < 5; ++i) {
      std::vector<TokenId> before = PromptTokens(session.calls[i - 1]);
      const std::vector<TokenId> answer = OutputTokens(session.calls[i - 1]);
      before.insert(before.end(), answer.begin(), answer.end());
      const std::vector<TokenId> now = PromptTokens(session.calls[i]);
      EXPECT_TRUE(BeginsWith(now, before));
      EXPECT_EQ(now.size(), before.size() + 2) << "64 new tokens over 32";
      EXPECT_GT(session.calls[i].gap_s, 0);
    }
  }
  EXPECT_GT(plan.sessions[1].start_s, plan.sessions[0].start_s);
}

TEST(PlanMultiTurn, KeepsTheConversations) {
  const MultiTurnOptions options{.sessions = 2, .turns = 3, .seed = 4};
  const std::vector<Conversation> conversations = MakeMultiTurn(options);
  const LoadPlan plan = PlanMultiTurn(options, 9);
  ASSERT_EQ(plan.sessions.size(), 2U);
  for (size_t s = 0; s < 2; ++s) {
    for (size_t t = 0; t < 3; ++t) {
      const PlannedCall& call = plan.sessions[s].calls[t];
      const auto& messages = std::get<std::vector<PlannedMessage>>(call.prompt);
      ASSERT_EQ(messages.size(), t == 0 ? 2U : 1U);
      EXPECT_EQ(messages.back().content, conversations[s].turns[t]);
      EXPECT_EQ(messages.front().role, t == 0 ? "system" : "user");
      EXPECT_EQ(call.max_tokens, 9);
    }
  }
}

TEST(PlanAgent, SessionsCallToolsAndEndWithAnAnswer) {
  const AgentLoadOptions options{.sessions = 200, .seed = 3};
  const AgentMaterial material = MadeUpAgentMaterial();
  const LoadPlan plan = PlanAgent(material, options);
  double log_gaps = 0;
  int gaps = 0;
  for (const PlannedSession& session : plan.sessions) {
    size_t bytes = 0;
    for (size_t i = 0; i < session.calls.size(); ++i) {
      const PlannedCall& call = session.calls[i];
      for (const PlannedMessage& message : std::get<std::vector<PlannedMessage>>(call.prompt)) {
        bytes += message.content.size();
      }
      const auto& text = std::get<std::string>(call.output);
      bytes += text.size();
      EXPECT_EQ(text.find("<tool_call>") != std::string::npos, i + 1 < session.calls.size());
      EXPECT_EQ(call.gap_s > 0, i > 0);
      if (i > 0) {
        log_gaps += std::log(call.gap_s);
        ++gaps;
      }
    }
    EXPECT_LE(bytes, 8192U * 3);
    EXPECT_LE(session.calls.size(), 11U);
  }
  EXPECT_GT(gaps, 600);
  // The mean of ln over the tools: ln(mean) - sigma^2 / 2 of each.
  EXPECT_NEAR(log_gaps / gaps, 0.248, 0.12);
  EXPECT_EQ(std::get<std::string>(PlanAgent(material, options).sessions[7].calls[1].output),
            std::get<std::string>(plan.sessions[7].calls[1].output));
}

TEST(PlanAgent, ReadsTheLeaderboardsFiles) {
  const Result<AgentMaterial> material = ParseAgentMaterial(
      R"({"id": "a", "question": [[{"role": "user", "content": "Who?"}]]})"
      "\n\n"
      R"({"id": "b", "question": [[{"role": "user", "content": "When?"}]]})",
      R"({"name": "find", "description": "d", "parameters": {"type": "dict", "properties": {)"
      R"("words": {"type": "string"}, "n": {"type": "integer"}}, "required": ["words", "n"]}})");
  ASSERT_TRUE(material) << material.error().message;
  EXPECT_THAT(material->questions, testing::ElementsAre("Who?", "When?"));
  ASSERT_EQ(material->tools.size(), 1U);
  const LoadPlan plan = PlanAgent(*material, {.sessions = 1});
  EXPECT_THAT(std::get<std::string>(plan.sessions[0].calls[0].output),
              testing::ContainsRegex("\\{\"name\":\"find\",\"arguments\":\\{\"words\":\"[a-z ]+\","
                                     "\"n\":[0-9]+\\}\\}"));
  const auto fault = [](const char* questions, const char* tools) {
    const Result<AgentMaterial> parsed = ParseAgentMaterial(questions, tools);
    return parsed ? "" : parsed.error().message;
  };
  EXPECT_THAT(fault("{}", "{\"name\":\"a\"}"), testing::HasSubstr("questions, line 1"));
  EXPECT_THAT(fault("{\"question\":[[{\"content\":\"a\"}]]}", "\n{\"name\":1}"),
              testing::HasSubstr("functions, line 2"));
  EXPECT_THAT(fault("", ""), testing::HasSubstr("no questions"));
}

TEST(PlanTrace, EqualIdsAreEqualBlocks) {
  const std::string text =
      R"({"timestamp": 1000, "input_length": 1100, "output_length": 16, "hash_ids": [1, 2, 3]})"
      "\n"
      R"({"timestamp": 3000, "input_length": 1600, "output_length": 8, "hash_ids": [1, 2, 4, 5]})";
  const Result<LoadPlan> plan = PlanTrace(text, "t", {.scale = 4});
  ASSERT_TRUE(plan) << plan.error().message;
  ASSERT_EQ(plan->sessions.size(), 2U);
  const std::vector<TokenId> a = PromptTokens(plan->sessions[0].calls[0]);
  const std::vector<TokenId> b = PromptTokens(plan->sessions[1].calls[0]);
  EXPECT_EQ(a.size(), 275U);
  EXPECT_EQ(b.size(), 400U);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 256, b.begin()));
  EXPECT_FALSE(std::equal(a.begin() + 256, a.end(), b.begin() + 256));
  EXPECT_EQ(plan->sessions[0].calls[0].max_tokens, 4);
  EXPECT_DOUBLE_EQ(plan->sessions[1].start_s, 2);
  EXPECT_EQ(PlanTrace(text, "t", {.context_tokens = 300, .scale = 4})->left_out, 1);
  EXPECT_EQ(PlanTrace(text, "t", {.requests = 1})->calls(), 1U);
  EXPECT_FALSE(PlanTrace(text, "t", {.context_tokens = 10}));
}

TEST(PlanTrace, NamedSessionsKeepTheirOrderAndTimes) {
  const std::string text =
      R"({"timestamp": 5000000, "session_id": "a", "input": "one", "output": "first"})"
      "\n"
      R"({"timestamp": 9000000, "session_id": "b", "input": "x", "output": ""})"
      "\n"
      R"({"timestamp": 7500000, "session_id": "a", "input": "one first two", "output": "last"})";
  const Result<LoadPlan> plan = PlanTrace(text, "t", {});
  ASSERT_TRUE(plan) << plan.error().message;
  ASSERT_EQ(plan->sessions.size(), 2U);
  ASSERT_EQ(plan->sessions[0].calls.size(), 2U);
  EXPECT_EQ(std::get<std::string>(plan->sessions[0].calls[1].prompt), "one first two");
  EXPECT_EQ(std::get<std::string>(plan->sessions[0].calls[1].output), "last");
  EXPECT_DOUBLE_EQ(plan->sessions[0].calls[1].not_before_s, 2.5);
  EXPECT_DOUBLE_EQ(plan->sessions[1].start_s, 4);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(plan->sessions[1].calls[0].output));
  EXPECT_THAT(PlanTrace(text, "t", {.scale = 2}).error().message, testing::HasSubstr("--scale"));
}

}  // namespace
}  // namespace kvik::workload
