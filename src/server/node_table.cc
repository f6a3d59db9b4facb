// SPDX-License-Identifier: Apache-2.0
#include "server/node_table.h"

#include <algorithm>
#include <utility>

#include "base/fnv.h"

namespace kvik::server {
namespace {

// Bytes of text; about as many tokens as a few blocks have.
constexpr size_t kPieceBytes = 256;
// Beyond it prompts of equal beginnings are not told apart.
constexpr size_t kMaxPieces = 4096;
// What a request costs besides its unseen pieces: its decoding.
constexpr int64_t kRequestPieces = 4;

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a ^ (b + 0x9E3779B97F4A7C15ULL + (a << 6) + (a >> 2));
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

}  // namespace

const char* NodeRoleName(NodeRole role) {
  switch (role) {
    case NodeRole::kPrefill:
      return "prefill";
    case NodeRole::kDecode:
      return "decode";
    case NodeRole::kBoth:
      break;
  }
  return "both";
}

std::optional<NodeRole> ParseNodeRole(std::string_view name) {
  for (const NodeRole role : {NodeRole::kPrefill, NodeRole::kDecode, NodeRole::kBoth}) {
    if (name == NodeRoleName(role)) {
      return role;
    }
  }
  return std::nullopt;
}

std::vector<uint64_t> PromptPieces(std::string_view prompt) {
  std::vector<uint64_t> pieces;
  uint64_t hash = 0;
  for (size_t at = 0; at < prompt.size() && pieces.size() < kMaxPieces; at += kPieceBytes) {
    hash = Mix(hash, Fnv1a(prompt.substr(at, kPieceBytes)));
    pieces.push_back(hash);
  }
  return pieces;
}

NodeTable::NodeTable(const Clock& clock, size_t max_prefixes)
    : clock_(clock), max_prefixes_(max_prefixes) {}

const NodeTable::Node* NodeTable::Find(const std::string& url) const {
  const auto it = std::find_if(nodes_.begin(), nodes_.end(),
                               [&](const Node& node) { return node.state.url == url; });
  return it == nodes_.end() ? nullptr : &*it;
}

NodeTable::Node* NodeTable::Find(const std::string& url) {
  return const_cast<Node*>(std::as_const(*this).Find(url));
}

bool NodeTable::Join(const std::string& url, NodeRole role, int64_t lease_us) {
  MutexLock lock(mutex_);
  Node* node = Find(url);
  const bool is_new = node == nullptr;
  if (is_new) {
    node = &nodes_.emplace_back();
    node->state.url = url;
    node->state.reason = "not seen yet";
    node->id = ++last_id_;
    node->member = node->id;
  } else if (node->state.lease_until_us == 0) {
    lease_us = 0;  // who was named at the start stays
  }
  node->state.role = role;
  node->state.lease_until_us = lease_us == 0 ? 0 : clock_.NowMicros() + lease_us;
  return is_new;
}

bool NodeTable::Leave(const std::string& url) {
  MutexLock lock(mutex_);
  return std::erase_if(nodes_, [&](const Node& node) { return node.state.url == url; }) > 0;
}

std::vector<std::string> NodeTable::DropExpired() {
  MutexLock lock(mutex_);
  const int64_t now = clock_.NowMicros();
  std::vector<std::string> dropped;
  std::erase_if(nodes_, [&](const Node& node) {
    const bool over = node.state.lease_until_us != 0 && node.state.lease_until_us <= now;
    if (over) {
      dropped.push_back(node.state.url);
    }
    return over;
  });
  return dropped;
}

bool NodeTable::Up(const std::string& url, const NodeFacts& facts) {
  MutexLock lock(mutex_);
  Node* const node = Find(url);
  if (node == nullptr) {
    return false;
  }
  const bool news = !node->state.up;
  if (node->state.facts.engine_id != facts.engine_id) {
    node->id = ++last_id_;  // it started anew and has seen nothing
  }
  node->state.facts = facts;
  node->state.up = true;
  node->state.reason.clear();
  return news;
}

bool NodeTable::Down(const std::string& url, const std::string& reason) {
  MutexLock lock(mutex_);
  Node* const node = Find(url);
  if (node == nullptr) {
    return false;
  }
  const bool news = node->state.up;
  node->state.up = false;
  node->state.reason = reason;
  return news;
}

std::optional<bool> NodeTable::IsUp(const std::string& url) const {
  MutexLock lock(mutex_);
  const Node* const node = Find(url);
  return node == nullptr ? std::nullopt : std::optional(node->state.up);
}

int64_t NodeTable::SeenBy(uint64_t id, std::span<const uint64_t> pieces) const {
  int64_t seen = 0;
  for (const uint64_t piece : pieces) {
    const auto it = by_hash_.find(piece);
    if (it == by_hash_.end() || std::find(it->second->nodes.begin(), it->second->nodes.end(), id) ==
                                    it->second->nodes.end()) {
      break;
    }
    ++seen;
  }
  return seen;
}

void NodeTable::Note(uint64_t id, std::span<const uint64_t> pieces) {
  // From the back, so that the beginning is the latest: it is forgotten last.
  for (size_t i = pieces.size(); i-- > 0;) {
    const auto it = by_hash_.find(pieces[i]);
    if (it == by_hash_.end()) {
      prefixes_.push_front(Prefix{pieces[i], {id}});
      by_hash_.emplace(pieces[i], prefixes_.begin());
      continue;
    }
    std::vector<uint64_t>& nodes = it->second->nodes;
    if (std::find(nodes.begin(), nodes.end(), id) == nodes.end()) {
      // Ids of nodes that are no more.
      std::erase_if(nodes, [&](uint64_t other) {
        return std::none_of(nodes_.begin(), nodes_.end(),
                            [&](const Node& node) { return node.id == other; });
      });
      nodes.push_back(id);
    }
    prefixes_.splice(prefixes_.begin(), prefixes_, it->second);
  }
  while (prefixes_.size() > max_prefixes_) {
    by_hash_.erase(prefixes_.back().hash);
    prefixes_.pop_back();
  }
}

std::unique_ptr<NodeTable::Visit> NodeTable::Pick(NodeRole role, std::span<const uint64_t> pieces,
                                                  std::span<const std::string> except) {
  MutexLock lock(mutex_);
  Node* best = nullptr;
  int64_t best_cost = 0;
  int64_t best_seen = 0;
  uint64_t best_draw = 0;
  const auto total = static_cast<int64_t>(pieces.size());
  for (Node& node : nodes_) {
    const NodeState& state = node.state;
    const bool fits =
        state.role == role || (role == NodeRole::kDecode && state.role == NodeRole::kBoth);
    if (!state.up || !fits || std::find(except.begin(), except.end(), state.url) != except.end()) {
      continue;
    }
    const int64_t seen = SeenBy(node.id, pieces);
    const int64_t cost = node.pending + total - seen;
    const uint64_t draw = Mix(pieces.empty() ? 0 : pieces.front(), Fnv1a(state.url));
    if (best == nullptr || cost < best_cost || (cost == best_cost && draw < best_draw)) {
      best = &node;
      best_cost = cost;
      best_seen = seen;
      best_draw = draw;
    }
  }
  if (best == nullptr) {
    return nullptr;
  }
  const int64_t cost = total - best_seen + kRequestPieces;
  best->pending += cost;
  ++best->state.running;
  ++best->state.requests;
  Note(best->id, pieces);
  return std::make_unique<Visit>(*this, best->member, best->state, best_seen, cost);
}

void NodeTable::End(const Visit& visit, bool failed) {
  MutexLock lock(mutex_);
  Node* const node = Find(visit.url());
  if (node == nullptr || node->member != visit.member_) {
    return;
  }
  if (failed) {
    ++node->state.failures;
    return;
  }
  node->pending -= visit.cost_;
  --node->state.running;
}

std::vector<NodeState> NodeTable::Nodes() const {
  MutexLock lock(mutex_);
  std::vector<NodeState> states;
  states.reserve(nodes_.size());
  for (const Node& node : nodes_) {
    states.push_back(node.state);
  }
  return states;
}

NodeTable::Visit::Visit(NodeTable& table, uint64_t member, const NodeState& node,
                        int64_t seen_pieces, int64_t cost)
    : table_(table),
      member_(member),
      url_(node.url),
      role_(node.role),
      facts_(node.facts),
      seen_pieces_(seen_pieces),
      cost_(cost) {}

NodeTable::Visit::~Visit() { table_.End(*this, /*failed=*/false); }

void NodeTable::Visit::Fail() { table_.End(*this, /*failed=*/true); }

}  // namespace kvik::server
