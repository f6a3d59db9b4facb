// SPDX-License-Identifier: Apache-2.0
// server/router.h: one OpenAI address for many servers: prefill on one node, decoding on another.
//
// A request goes to the node that decodes it, chosen by what it has of the prompt and how busy it
// is. Where the events of nodes are followed, one of them is asked how the prompt's blocks are
// named (POST /kv/blocks/...), so that the router needs no tokenizer. If
// that node only decodes, a prefill node gets the prompt first, with one token to generate; as soon
// as it has accepted it the decode node gets the request and comes for the KV while it is computed.
// What the prefill node refuses is refused to the client. Whatever else goes wrong there, the
// decode node computes by itself, unless the policy says that such requests fail. A client that
// leaves ends both.
//
//   GET /nodes                    who is there
//   POST /nodes {"url", "role"}   joins; with "lease_ms" it has to be repeated
//   DELETE /nodes {"url"}         leaves; what runs there goes on
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/clock.h"
#include "events/follower.h"
#include "server/http.h"
#include "server/node_table.h"

namespace kvik::server {

struct RouterOptions {
  std::string api_key;  // of /nodes; requests are forwarded with the client's own
  std::string version;
  // What becomes of a request that no prefill node takes: computed by the decode node, or refused.
  bool fail_without_prefill = false;
  // A node that is down may still be at work; a call that hears nothing from it for so long is
  // given up: while it answers, and before it has accepted anything.
  int64_t silent_answer_us = 10'000'000;
  int64_t silent_accept_us = 2'000'000;
  uint64_t id_seed = 0;           // of request ids
  std::function<void()> on_join;  // somebody joined; may be empty
  // How following the nodes' KV events goes, by NodeState::id; empty: they are not followed.
  std::function<std::map<uint64_t, events::FollowStats>()> follow_stats;
};

// Handle is thread-safe; it runs on the connection's thread and waits there.
class Router {
 public:
  // References must outlive the router.
  Router(RouterOptions options, NodeTable& nodes, const Clock& clock);
  ~Router();
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;

  // Never throws; every failure is a reply.
  HttpResponse Handle(const HttpRequest& request);

  // Takes no new requests: /health says so.
  void Drain() { draining_ = true; }

 private:
  class Relay;
  struct Metrics;
  HttpResponse Route(const HttpRequest& request);
  HttpResponse Generate(const HttpRequest& request);
  HttpResponse Forward(const HttpRequest& request);
  HttpResponse ForwardToAll(const HttpRequest& request);
  HttpResponse Health() const;
  HttpResponse ListNodes() const;
  HttpResponse JoinNode(const HttpRequest& request);
  HttpResponse LeaveNode(const HttpRequest& request);
  [[nodiscard]] std::string RenderMetrics() const;
  std::string NewId(const HttpRequest& request);

  const RouterOptions options_;
  NodeTable& nodes_;
  const Clock& clock_;
  const std::unique_ptr<Metrics> metrics_;
  std::atomic<uint64_t> next_id_{0};
  std::atomic<bool> draining_{false};
  std::atomic<int64_t> ask_again_us_{0};  // after a node did not say how blocks are named
};

}  // namespace kvik::server
