// SPDX-License-Identifier: Apache-2.0
// server/node_table.h: the servers behind a router: who is there, how busy, and who has which
// beginnings of prompts.
//
// What a node has is known exactly of nodes whose KV events are followed (server/block_holders.h),
// of prompts whose blocks have names. Of others it is taken to be what it was sent before, told
// apart by the text; so is, of all, what is under way there.
//
// A node is taken out when it does not answer and comes back when it does. One that joined by
// itself leaves when it says so or stops repeating that it is there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "events/follower.h"
#include "server/block_holders.h"

namespace kvik::server {

enum class NodeRole : uint8_t { kPrefill, kDecode, kBoth };
// "prefill", "decode", "both".
[[nodiscard]] const char* NodeRoleName(NodeRole role);
[[nodiscard]] std::optional<NodeRole> ParseNodeRole(std::string_view name);

// What a node says of itself in /health.
struct NodeFacts {
  std::string engine_id;  // another one after each start
  std::string kv_host;    // where peers get KV; empty: nowhere
  int32_t kv_port = 0;
  std::optional<events::EventSource> events;  // where its KV events are published
};

// A prompt cut into pieces: hash i stands for everything up to the end of piece i.
[[nodiscard]] std::vector<uint64_t> PromptPieces(std::string_view prompt);

// What a prompt is to whoever looks for a node that has seen its beginning.
struct PromptTrace {
  std::vector<uint64_t> pieces = {};
  // If known: its length, and the names of its full blocks of KV (events::HashNumber).
  int64_t num_tokens = 0;
  std::vector<uint64_t> blocks = {};
  int32_t block_size_tokens = 0;
};

struct NodeState {
  uint64_t id = 0;  // another one after it has joined or started anew
  std::string url;
  NodeRole role = NodeRole::kBoth;
  bool up = false;
  std::string reason;          // why not
  int64_t lease_until_us = 0;  // 0: as long as the router runs
  NodeFacts facts;
  int64_t running = 0;
  int64_t requests = 0;
  int64_t failures = 0;
  std::optional<int64_t> held_blocks;  // as its events tell
};

// Thread-safe.
class NodeTable {
 public:
  // References must outlive the table. `max_prefixes`: pieces that are remembered, all nodes
  // together. `holders`: by NodeState::id; null: no events are followed.
  NodeTable(const Clock& clock, size_t max_prefixes, const BlockHolders* holders = nullptr);

  // `lease_us` 0: it stays. Again: the lease begins anew, and the role may be another one. New
  // nodes are down until they are seen. Whether it is new.
  bool Join(const std::string& url, NodeRole role, int64_t lease_us) KVIK_EXCLUDES(mutex_);
  bool Leave(const std::string& url) KVIK_EXCLUDES(mutex_);
  // Drops nodes whose lease has ended; their URLs.
  std::vector<std::string> DropExpired() KVIK_EXCLUDES(mutex_);

  // Each returns whether that is news.
  bool Up(const std::string& url, const NodeFacts& facts) KVIK_EXCLUDES(mutex_);
  bool Down(const std::string& url, const std::string& reason) KVIK_EXCLUDES(mutex_);
  // nullopt: it has left.
  [[nodiscard]] std::optional<bool> IsUp(const std::string& url) const KVIK_EXCLUDES(mutex_);

  // A request at a node, until it is dropped.
  class Visit {
   public:
    Visit(NodeTable& table, uint64_t member, const NodeState& node, int64_t seen_tokens,
          int64_t cost, std::vector<uint64_t> pieces);
    ~Visit();
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;
    [[nodiscard]] const std::string& url() const { return url_; }
    [[nodiscard]] NodeRole role() const { return role_; }
    [[nodiscard]] const NodeFacts& facts() const { return facts_; }
    // Of the prompt, at its beginning, that the node has.
    [[nodiscard]] int64_t seen_tokens() const { return seen_tokens_; }
    // It did not go well.
    void Fail();

   private:
    friend class NodeTable;
    NodeTable& table_;
    const uint64_t member_;
    const std::string url_;
    const NodeRole role_;
    const NodeFacts facts_;
    const int64_t seen_tokens_;
    const int64_t cost_;
    const std::vector<uint64_t> pieces_;
  };

  // The node of this role (kDecode: or kBoth) that would begin soonest: least of what is pending
  // there plus what it does not have of the prompt. Equals are told apart by the prompt's
  // beginning, so that every router takes the same. Null: none is up beside those in `except`.
  [[nodiscard]] std::unique_ptr<Visit> Pick(NodeRole role, const PromptTrace& prompt,
                                            std::span<const std::string> except = {})
      KVIK_EXCLUDES(mutex_);

  // The URL of a node that can say how the blocks of prompts are named, if it is worth asking:
  // there is a choice between nodes, and events of one of them were heard.
  [[nodiscard]] std::optional<std::string> WhomToAsk() const KVIK_EXCLUDES(mutex_);

  [[nodiscard]] std::vector<NodeState> Nodes() const KVIK_EXCLUDES(mutex_);

 private:
  struct Node {
    NodeState state;
    uint64_t member = 0;  // another one after it has left and joined
    int64_t pending = 0;  // cost of the requests there
    // Pieces of the requests there, each with how many have it.
    std::unordered_map<uint64_t, int32_t> under_way;
  };
  // Who has seen a beginning.
  struct Prefix {
    uint64_t hash = 0;
    std::vector<uint64_t> nodes;
  };

  Node* Find(const std::string& url) KVIK_REQUIRES(mutex_);
  [[nodiscard]] const Node* Find(const std::string& url) const KVIK_REQUIRES(mutex_);
  // Tokens of the prompt that a node has; `total` of all.
  [[nodiscard]] int64_t SeenBy(const Node& node, const PromptTrace& prompt, int64_t total) const
      KVIK_REQUIRES(mutex_);
  [[nodiscard]] int64_t PiecesSentTo(uint64_t id, std::span<const uint64_t> pieces) const
      KVIK_REQUIRES(mutex_);
  void Note(uint64_t id, std::span<const uint64_t> pieces) KVIK_REQUIRES(mutex_);
  void End(const Visit& visit, bool failed) KVIK_EXCLUDES(mutex_);

  const Clock& clock_;
  const size_t max_prefixes_;
  const BlockHolders* const holders_;
  mutable Mutex mutex_;
  std::vector<Node> nodes_ KVIK_GUARDED_BY(mutex_);
  uint64_t last_id_ KVIK_GUARDED_BY(mutex_) = 0;
  std::list<Prefix> prefixes_ KVIK_GUARDED_BY(mutex_);  // the latest first
  std::unordered_map<uint64_t, std::list<Prefix>::iterator> by_hash_ KVIK_GUARDED_BY(mutex_);
};

}  // namespace kvik::server
