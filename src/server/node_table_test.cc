// SPDX-License-Identifier: Apache-2.0
#include "server/node_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kvik::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string Prompt(char letter, size_t bytes) { return std::string(bytes, letter); }

class NodeTableTest : public ::testing::Test {
 protected:
  void Add(const std::string& url, NodeRole role, const std::string& engine = "e") {
    table_.Join(url, role, 0);
    table_.Up(url, {.engine_id = engine, .kv_host = "h", .kv_port = 1});
  }
  std::string Serve(NodeRole role, const std::string& prompt,
                    const std::vector<std::string>& except = {}) {
    const auto visit = table_.Pick(role, PromptPieces(prompt), except);
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
        table_.Pick(NodeRole::kDecode, PromptPieces(Prompt(letter, 4000) + Prompt('!', 3000)));
    EXPECT_EQ(again->url(), first);
    EXPECT_EQ(again->seen_pieces(), 15);
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
  const auto busy = table_.Pick(NodeRole::kDecode, PromptPieces(Prompt('l', 100 * 256)), except);
  EXPECT_EQ(busy->url(), owner);
  EXPECT_EQ(Serve(NodeRole::kDecode, known), other);
}

TEST_F(NodeTableTest, LoadIsSpread) {
  Add("http://a", NodeRole::kDecode);
  Add("http://b", NodeRole::kDecode);
  std::vector<std::unique_ptr<NodeTable::Visit>> open;
  for (char letter = 'a'; letter < 'a' + 10; ++letter) {
    open.push_back(table_.Pick(NodeRole::kDecode, PromptPieces(Prompt(letter, 600))));
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
    const std::vector<uint64_t> pieces = PromptPieces(Prompt(letter, 500));
    EXPECT_EQ(table_.Pick(NodeRole::kDecode, pieces)->url(),
              second.Pick(NodeRole::kDecode, pieces)->url());
  }
}

TEST_F(NodeTableTest, ANodeThatStartedAnewHasSeenNothing) {
  Add("http://a", NodeRole::kDecode, "first");
  Serve(NodeRole::kDecode, Prompt('x', 1000));
  EXPECT_EQ(table_.Pick(NodeRole::kDecode, PromptPieces(Prompt('x', 1000)))->seen_pieces(), 4);
  table_.Up("http://a", {.engine_id = "second", .kv_host = "", .kv_port = 0});
  EXPECT_EQ(table_.Pick(NodeRole::kDecode, PromptPieces(Prompt('x', 1000)))->seen_pieces(), 0);
}

TEST_F(NodeTableTest, OnlySoManyBeginningsAreRemembered) {
  NodeTable small(clock_, 10);
  small.Join("http://a", NodeRole::kBoth, 0);
  small.Up("http://a", {});
  const auto serve = [&](char letter) {
    return small.Pick(NodeRole::kDecode, PromptPieces(Prompt(letter, 4 * 256)))->seen_pieces();
  };
  EXPECT_EQ(serve('a'), 0);
  EXPECT_EQ(serve('b'), 0);
  EXPECT_EQ(serve('a'), 4);
  EXPECT_EQ(serve('c'), 0);
  EXPECT_EQ(serve('a'), 4) << "used more lately than b";
  EXPECT_LT(serve('b'), 4);
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

TEST_F(NodeTableTest, AVisitMayOutliveItsNode) {
  Add("http://a", NodeRole::kDecode);
  auto visit = table_.Pick(NodeRole::kDecode, PromptPieces("x"));
  table_.Leave("http://a");
  visit->Fail();
  visit.reset();
  Add("http://a", NodeRole::kDecode);
  EXPECT_EQ(table_.Nodes()[0].running, 0);
}

}  // namespace
}  // namespace kvik::server
