// SPDX-License-Identifier: Apache-2.0
#include "server/node_table.h"

#include <algorithm>
#include <utility>

#include "base/fnv.h"

namespace kvik::server {
namespace {

// Bytes of text, and about how many tokens they are.
constexpr size_t kPieceBytes = 256;
constexpr int64_t kPieceTokens = 64;
// Beyond it prompts of equal beginnings are not told apart.
constexpr size_t kMaxPieces = 4096;
// What a request costs besides the tokens of its prompt that are computed: its decoding.
constexpr int64_t kRequestTokens = 256;

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

NodeTable::NodeTable(const Clock& clock, size_t max_prefixes, const BlockHolders* holders)
    : clock_(clock), max_prefixes_(max_prefixes), holders_(holders) {}

const NodeTable::Node* NodeTable::Find(const std::string& url) const {
  const auto it = std::find_if(nodes_.begin(), nodes_.end(),
                               [&](const Node& node) { return node.state.url == url; });
  return it == nodes_.end() ? nullptr : &*it;
}

NodeTable::Node* NodeTable::Find(const std::string& url) {
  const auto it = std::find_if(nodes_.begin(), nodes_.end(),
                               [&](const Node& node) { return node.state.url == url; });
  return it == nodes_.end() ? nullptr : &*it;
}

bool NodeTable::Join(const std::string& url, NodeRole role, int64_t lease_us) {
  MutexLock lock(mutex_);
  Node* node = Find(url);
  const bool is_new = node == nullptr;
  if (is_new) {
    node = &nodes_.emplace_back();
    node->state.url = url;
    node->state.reason = "not seen yet";
    node->state.id = ++last_id_;
    node->member = node->state.id;
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
    node->state.id = ++last_id_;  // it started anew and has seen nothing
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

int64_t NodeTable::SeenBy(const Node& node, const PromptTrace& prompt, int64_t total) const {
  const auto tokens_of = [&](int64_t pieces) {
    return prompt.pieces.empty() ? 0 : total * pieces / std::ssize(prompt.pieces);
  };
  std::optional<int64_t> held;
  if (holders_ != nullptr && prompt.block_size_tokens > 0) {
    held = holders_->PrefixAt(node.state.id, prompt.blocks);
  }
  if (!held) {
    return tokens_of(PiecesSentTo(node.state.id, prompt.pieces));
  }
  // What is being computed there for others will be held when this request's turn comes.
  const auto end = std::find_if(prompt.pieces.begin(), prompt.pieces.end(),
                                [&](uint64_t piece) { return !node.under_way.contains(piece); });
  return std::max(*held * prompt.block_size_tokens, tokens_of(end - prompt.pieces.begin()));
}

int64_t NodeTable::PiecesSentTo(uint64_t id, std::span<const uint64_t> pieces) const {
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
      std::erase_if(nodes, [&](uint64_t other) KVIK_REQUIRES(mutex_) {
        return std::none_of(nodes_.begin(), nodes_.end(),
                            [&](const Node& node) { return node.state.id == other; });
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

std::unique_ptr<NodeTable::Visit> NodeTable::Pick(NodeRole role, const PromptTrace& prompt,
                                                  std::span<const std::string> except) {
  MutexLock lock(mutex_);
  Node* best = nullptr;
  int64_t best_cost = 0;
  int64_t best_seen = 0;
  uint64_t best_draw = 0;
  const int64_t total =
      prompt.num_tokens > 0 ? prompt.num_tokens : std::ssize(prompt.pieces) * kPieceTokens;
  for (Node& node : nodes_) {
    const NodeState& state = node.state;
    const bool fits =
        state.role == role || (role == NodeRole::kDecode && state.role == NodeRole::kBoth);
    if (!state.up || !fits || std::find(except.begin(), except.end(), state.url) != except.end()) {
      continue;
    }
    const int64_t seen = SeenBy(node, prompt, total);
    const int64_t cost = node.pending + total - seen;
    const uint64_t draw = Mix(prompt.pieces.empty() ? 0 : prompt.pieces.front(), Fnv1a(state.url));
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
  const int64_t cost = total - best_seen + kRequestTokens;
  best->pending += cost;
  ++best->state.running;
  ++best->state.requests;
  for (const uint64_t piece : prompt.pieces) {
    ++best->under_way[piece];
  }
  Note(best->state.id, prompt.pieces);
  return std::make_unique<Visit>(*this, best->member, best->state, best_seen, cost, prompt.pieces);
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
  for (const uint64_t piece : visit.pieces_) {
    const auto it = node->under_way.find(piece);
    if (--it->second == 0) {
      node->under_way.erase(it);
    }
  }
}

std::optional<std::string> NodeTable::WhomToAsk() const {
  if (holders_ == nullptr) {
    return std::nullopt;
  }
  MutexLock lock(mutex_);
  const Node* least = nullptr;
  int prefill = 0;
  int decode = 0;
  for (const Node& node : nodes_) {
    if (!node.state.up) {
      continue;
    }
    ++(node.state.role == NodeRole::kPrefill ? prefill : decode);
    if ((least == nullptr || node.pending < least->pending) && holders_->HeldBy(node.state.id)) {
      least = &node;
    }
  }
  return least != nullptr && std::max(prefill, decode) > 1 ? std::optional(least->state.url)
                                                           : std::nullopt;
}

std::vector<NodeState> NodeTable::Nodes() const {
  MutexLock lock(mutex_);
  std::vector<NodeState> states;
  states.reserve(nodes_.size());
  for (const Node& node : nodes_) {
    states.push_back(node.state);
    if (holders_ != nullptr) {
      states.back().held_blocks = holders_->HeldBy(node.state.id);
    }
  }
  return states;
}

NodeTable::Visit::Visit(NodeTable& table, uint64_t member, const NodeState& node,
                        int64_t seen_tokens, int64_t cost, std::vector<uint64_t> pieces)
    : table_(table),
      member_(member),
      url_(node.url),
      role_(node.role),
      facts_(node.facts),
      seen_tokens_(seen_tokens),
      cost_(cost),
      pieces_(std::move(pieces)) {}

NodeTable::Visit::~Visit() { table_.End(*this, /*failed=*/false); }

void NodeTable::Visit::Fail() { table_.End(*this, /*failed=*/true); }

}  // namespace kvik::server
