// SPDX-License-Identifier: Apache-2.0
// server/node_table.h: the servers behind a router: who is there, how busy, and who has seen which
// beginnings of prompts.
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
};

// A prompt cut into pieces: hash i stands for everything up to the end of piece i.
[[nodiscard]] std::vector<uint64_t> PromptPieces(std::string_view prompt);

struct NodeState {
  std::string url;
  NodeRole role = NodeRole::kBoth;
  bool up = false;
  std::string reason;          // why not
  int64_t lease_until_us = 0;  // 0: as long as the router runs
  NodeFacts facts;
  int64_t running = 0;
  int64_t requests = 0;
  int64_t failures = 0;
};

// Thread-safe.
class NodeTable {
 public:
  // `clock` must outlive the table. `max_prefixes`: pieces that are remembered, all nodes together.
  NodeTable(const Clock& clock, size_t max_prefixes);

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
    Visit(NodeTable& table, uint64_t member, const NodeState& node, int64_t seen_pieces,
          int64_t cost);
    ~Visit();
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;
    [[nodiscard]] const std::string& url() const { return url_; }
    [[nodiscard]] NodeRole role() const { return role_; }
    [[nodiscard]] const NodeFacts& facts() const { return facts_; }
    // Of the prompt, at its beginning, that the node had seen before.
    [[nodiscard]] int64_t seen_pieces() const { return seen_pieces_; }
    // It did not go well.
    void Fail();

   private:
    friend class NodeTable;
    NodeTable& table_;
    const uint64_t member_;
    const std::string url_;
    const NodeRole role_;
    const NodeFacts facts_;
    const int64_t seen_pieces_;
    const int64_t cost_;
  };

  // The node of this role (kDecode: or kBoth) that would begin soonest: least of what is pending
  // there plus what it has not seen of the prompt. Equals are told apart by the prompt's beginning,
  // so that every router takes the same. Null: none is up beside those in `except`.
  [[nodiscard]] std::unique_ptr<Visit> Pick(NodeRole role, std::span<const uint64_t> pieces,
                                            std::span<const std::string> except = {})
      KVIK_EXCLUDES(mutex_);

  [[nodiscard]] std::vector<NodeState> Nodes() const KVIK_EXCLUDES(mutex_);

 private:
  struct Node {
    NodeState state;
    uint64_t member = 0;  // another one after it has left and joined
    uint64_t id = 0;      // another one after it has started anew, too: what it has seen
    int64_t pending = 0;  // cost of the requests there
  };
  // Who has seen a beginning.
  struct Prefix {
    uint64_t hash = 0;
    std::vector<uint64_t> nodes;
  };

  Node* Find(const std::string& url) KVIK_REQUIRES(mutex_);
  [[nodiscard]] const Node* Find(const std::string& url) const KVIK_REQUIRES(mutex_);
  [[nodiscard]] int64_t SeenBy(uint64_t id, std::span<const uint64_t> pieces) const
      KVIK_REQUIRES(mutex_);
  void Note(uint64_t id, std::span<const uint64_t> pieces) KVIK_REQUIRES(mutex_);
  void End(const Visit& visit, bool failed) KVIK_EXCLUDES(mutex_);

  const Clock& clock_;
  const size_t max_prefixes_;
  mutable Mutex mutex_;
  std::vector<Node> nodes_ KVIK_GUARDED_BY(mutex_);
  uint64_t last_id_ KVIK_GUARDED_BY(mutex_) = 0;
  std::list<Prefix> prefixes_ KVIK_GUARDED_BY(mutex_);  // the latest first
  std::unordered_map<uint64_t, std::list<Prefix>::iterator> by_hash_ KVIK_GUARDED_BY(mutex_);
};

}  // namespace kvik::server
