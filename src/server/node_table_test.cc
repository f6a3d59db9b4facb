// SPDX-License-Identifier: Apache-2.0
#include "server/node_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace kvik::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string Prompt(char letter, size_t bytes) { return std::string(bytes, letter); }

PromptTrace Trace(const std::string& text) { return {.pieces = PromptPieces(text)}; }

class NodeTableTest : public ::testing::Test {
 protected:
  void Add(const std::string& url, NodeRole role, const std::string& engine = "e") {
    table_.Join(url, role, 0);
    table_.Up(url, {.engine_id = engine, .kv_host = "h", .kv_port = 1, .events = {}});
  }
  std::string Serve(NodeRole role, const std::string& prompt,
                    const std::vector<std::string>& except = {}) {
    const auto visit = table_.Pick(role, Trace(prompt), except);
    return visit == nullptr ? "" : visit->url();
  }

  ManualClock clock_{1'000'000};
  NodeTable table_{clock_, 1000};
};

TEST(PromptPieces, APieceStandsForEverythingBeforeIt) {
  const std::vector<uint64_t> one = PromptPieces(Prompt('a', 1000));
  std::string other = Prompt('a', 1000);
  other[300] = 'b';
  const std::vector<uint64_t> two = PromptPieces(other);
  ASSERT_EQ(one.size(), 4U);
  EXPECT_EQ(one[0], two[0]);
  for (size_t i = 1; i < one.size(); ++i) {
    EXPECT_NE(one[i], two[i]) << i;
  }
  EXPECT_NE(one[0], one[1]) << "equal text at another place is another piece";
  EXPECT_THAT(PromptPieces(""), IsEmpty());
}

TEST_F(NodeTableTest, NobodyIsPickedBeforeHeIsSeen) {
  table_.Join("http://a", NodeRole::kDecode, 0);
  EXPECT_EQ(Serve(NodeRole::kDecode, "x"), "");
  EXPECT_TRUE(table_.Up("http://a", {}));
  EXPECT_FALSE(table_.Up("http://a", {}));
  EXPECT_EQ(Serve(NodeRole::kDecode, "x"), "http://a");
  EXPECT_TRUE(table_.Down("http://a", "gone"));
  EXPECT_EQ(Serve(NodeRole::kDecode, "x"), "");
}

TEST_F(NodeTableTest, RolesAreKeptApartButForThoseThatDoBoth) {
  Add("http://p", NodeRole::kPrefill);
  EXPECT_EQ(Serve(NodeRole::kDecode, "x"), "");
  Add("http://b", NodeRole::kBoth);
  EXPECT_EQ(Serve(NodeRole::kDecode, "x"), "http://b");
  EXPECT_EQ(Serve(NodeRole::kPrefill, "x"), "http://p");
  EXPECT_EQ(Serve(NodeRole::kPrefill, "x", {"http://p"}), "");
}

TEST_F(NodeTableTest, APromptGoesWhereItsBeginningWasSeen) {
  for (const char* url : {"http://a", "http://b", "http://c"}) {
    Add(url, NodeRole::kDecode);
  }
  for (const char letter : std::string("qrstuvwxyz")) {
    const std::string first = Serve(NodeRole::kDecode, Prompt(letter, 4000));
    const auto again =
        table_.Pick(NodeRole::kDecode, Trace(Prompt(letter, 4000) + Prompt('!', 3000)));
    EXPECT_EQ(again->url(), first);
    EXPECT_EQ(again->seen_tokens(), 15 * 64);
  }
}

TEST_F(NodeTableTest, WhoIsBusyIsSparedEvenIfItKnowsThePrompt) {
  Add("http://a", NodeRole::kDecode);
  Add("http://b", NodeRole::kDecode);
  const std::string known = Prompt('k', 4 * 256);
  const std::string owner = Serve(NodeRole::kDecode, known);
  // Long prompts that only the owner is there for.
  const std::string other = owner == "http://a" ? "http://b" : "http://a";
  const std::vector<std::string> except = {other};
  const auto busy = table_.Pick(NodeRole::kDecode, Trace(Prompt('l', 100 * 256)), except);
  EXPECT_EQ(busy->url(), owner);
  EXPECT_EQ(Serve(NodeRole::kDecode, known), other);
}

TEST_F(NodeTableTest, LoadIsSpread) {
  Add("http://a", NodeRole::kDecode);
  Add("http://b", NodeRole::kDecode);
  std::vector<std::unique_ptr<NodeTable::Visit>> open;
  for (char letter = 'a'; letter < 'a' + 10; ++letter) {
    open.push_back(table_.Pick(NodeRole::kDecode, Trace(Prompt(letter, 600))));
  }
  for (const NodeState& node : table_.Nodes()) {
    EXPECT_EQ(node.running, 5) << node.url;
  }
  open.clear();
  for (const NodeState& node : table_.Nodes()) {
    EXPECT_EQ(node.running, 0) << node.url;
    EXPECT_EQ(node.requests, 5) << node.url;
  }
}

TEST_F(NodeTableTest, TwoRoutersChooseTheSame) {
  NodeTable second(clock_, 1000);
  // Joined in another order.
  for (const char* url : {"http://a", "http://b", "http://c"}) {
    Add(url, NodeRole::kDecode);
  }
  for (const char* url : {"http://c", "http://a", "http://b"}) {
    second.Join(url, NodeRole::kDecode, 0);
    second.Up(url, {});
  }
  for (char letter = 'a'; letter <= 'z'; ++letter) {
    const PromptTrace prompt = Trace(Prompt(letter, 500));
    EXPECT_EQ(table_.Pick(NodeRole::kDecode, prompt)->url(),
              second.Pick(NodeRole::kDecode, prompt)->url());
  }
}

TEST_F(NodeTableTest, ANodeThatStartedAnewHasSeenNothing) {
  Add("http://a", NodeRole::kDecode, "first");
  Serve(NodeRole::kDecode, Prompt('x', 1000));
  EXPECT_EQ(table_.Pick(NodeRole::kDecode, Trace(Prompt('x', 1000)))->seen_tokens(), 4 * 64);
  table_.Up("http://a", {.engine_id = "second", .kv_host = "", .kv_port = 0, .events = {}});
  EXPECT_EQ(table_.Pick(NodeRole::kDecode, Trace(Prompt('x', 1000)))->seen_tokens(), 0);
}

TEST_F(NodeTableTest, OnlySoManyBeginningsAreRemembered) {
  NodeTable small(clock_, 10);
  small.Join("http://a", NodeRole::kBoth, 0);
  small.Up("http://a", {});
  const auto serve = [&](char letter) {
    return small.Pick(NodeRole::kDecode, Trace(Prompt(letter, 4 * 256)))->seen_tokens();
  };
  EXPECT_EQ(serve('a'), 0);
  EXPECT_EQ(serve('b'), 0);
  EXPECT_EQ(serve('a'), 4 * 64);
  EXPECT_EQ(serve('c'), 0);
  EXPECT_EQ(serve('a'), 4 * 64) << "used more lately than b";
  EXPECT_LT(serve('b'), 4 * 64);
}

TEST_F(NodeTableTest, WhoDoesNotRepeatThatHeIsThereLeaves) {
  Add("http://named", NodeRole::kDecode);
  EXPECT_TRUE(table_.Join("http://a", NodeRole::kDecode, 1'000));
  clock_.Advance(900);
  EXPECT_FALSE(table_.Join("http://a", NodeRole::kDecode, 1'000));
  clock_.Advance(900);
  EXPECT_THAT(table_.DropExpired(), IsEmpty());
  clock_.Advance(200);
  EXPECT_THAT(table_.DropExpired(), ElementsAre("http://a"));
  // Who was named at the start stays, whatever he says.
  table_.Join("http://named", NodeRole::kDecode, 1);
  clock_.Advance(1'000'000);
  EXPECT_THAT(table_.DropExpired(), IsEmpty());
  EXPECT_TRUE(table_.Leave("http://named"));
  EXPECT_FALSE(table_.Leave("http://named"));
}

// A prompt of blocks that have names.
PromptTrace Named(std::vector<uint64_t> blocks) {
  PromptTrace prompt = Trace("text that tells nothing");
  prompt.block_size_tokens = 16;
  prompt.num_tokens = 16 * std::ssize(blocks) + 5;
  prompt.blocks = std::move(blocks);
  return prompt;
}

class FollowedNodes : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* url : {"http://a", "http://b", "http://c"}) {
      table_.Join(url, NodeRole::kDecode, 0);
      table_.Up(url, {.engine_id = "1", .kv_host = "", .kv_port = 0, .events = {}});
      ids_.push_back(table_.Nodes().back().id);
    }
  }
  void Hold(size_t node, std::vector<uint64_t> blocks) {
    const events::ReceivedEvent event = {kv::BlockEventKind::kStored, kv::BlockMedium::kCache,
                                         std::move(blocks)};
    holders_.OnEvents(ids_[node], {&event, 1});
  }

  ManualClock clock_{1'000'000};
  BlockHolders holders_{1000};
  NodeTable table_{clock_, 1000, &holders_};
  std::vector<uint64_t> ids_;
};

TEST_F(FollowedNodes, APromptGoesWhereMostOfItIsHeld) {
  std::vector<uint64_t> prompt;
  for (uint64_t block = 1; block <= 40; ++block) {
    prompt.push_back(block);
  }
  Hold(0, {1, 2, 3});
  Hold(1, prompt);
  Hold(2, {2, 3, 4, 5, 6});  // not from its beginning
  for (int i = 0; i < 3; ++i) {
    const auto visit = table_.Pick(NodeRole::kDecode, Named(prompt));
    EXPECT_EQ(visit->url(), "http://b");
    EXPECT_EQ(visit->seen_tokens(), 40 * 16);
  }
  EXPECT_EQ(table_.Nodes()[1].held_blocks, 40);
}

TEST_F(FollowedNodes, WhatWasSentButIsNotHeldAnyMoreDoesNotCount) {
  const PromptTrace prompt = Named({1, 2, 3, 4, 5, 6, 7, 8});
  for (size_t node = 0; node < 3; ++node) {
    Hold(node, {100 + node});
  }
  const std::string first = table_.Pick(NodeRole::kDecode, prompt)->url();
  EXPECT_EQ(table_.Pick(NodeRole::kDecode, prompt)->seen_tokens(), 0);
  // While it is under way it does: it will be held by then.
  const std::vector<std::string> others = {first};
  const auto running = table_.Pick(NodeRole::kDecode, prompt, others);
  for (const NodeState& node : table_.Nodes()) {
    std::vector<std::string> all_but;
    for (const NodeState& other : table_.Nodes()) {
      if (other.url != node.url) {
        all_but.push_back(other.url);
      }
    }
    const auto visit = table_.Pick(NodeRole::kDecode, prompt, all_but);
    EXPECT_EQ(visit->seen_tokens(), node.url == running->url() ? prompt.num_tokens : 0);
  }
}

TEST_F(FollowedNodes, WhoIsNotFollowedGoesByTheText) {
  Hold(0, {100});
  Hold(1, {100});
  const PromptTrace prompt = Named({1, 2, 3, 4});
  const std::vector<std::string> but_c = {"http://a", "http://b"};
  EXPECT_EQ(table_.Pick(NodeRole::kDecode, prompt, but_c)->seen_tokens(), 0);
  EXPECT_EQ(table_.Pick(NodeRole::kDecode, prompt, but_c)->seen_tokens(), prompt.num_tokens);
  EXPECT_EQ(table_.Pick(NodeRole::kDecode, prompt)->url(), "http://c");
}

TEST_F(FollowedNodes, ANodeThatStartedAnewHoldsNothing) {
  Hold(0, {1, 2, 3});
  const std::vector<std::string> but_a = {"http://b", "http://c"};
  EXPECT_EQ(table_.Pick(NodeRole::kDecode, Named({1, 2, 3}), but_a)->seen_tokens(), 48);
  table_.Up("http://a", {.engine_id = "2", .kv_host = "", .kv_port = 0, .events = {}});
  EXPECT_EQ(table_.Pick(NodeRole::kDecode, Named({1, 2, 3}), but_a)->seen_tokens(), 0);
}

TEST_F(FollowedNodes, NobodyIsAskedForNamesWithoutEventsOrWithoutAChoice) {
  EXPECT_FALSE(table_.WhomToAsk());
  Hold(1, {1});
  EXPECT_EQ(table_.WhomToAsk(), "http://b");
  table_.Down("http://a", "gone");
  table_.Down("http://c", "gone");
  EXPECT_FALSE(table_.WhomToAsk());
}

TEST_F(NodeTableTest, AVisitMayOutliveItsNode) {
  Add("http://a", NodeRole::kDecode);
  auto visit = table_.Pick(NodeRole::kDecode, Trace("x"));
  table_.Leave("http://a");
  visit->Fail();
  visit.reset();
  Add("http://a", NodeRole::kDecode);
  EXPECT_EQ(table_.Nodes()[0].running, 0);
}

}  // namespace
}  // namespace kvik::server
