// SPDX-License-Identifier: Apache-2.0
// server/node_prober.h: asks the nodes of a router how they are, again and again.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <thread>

#include "base/bounded_queue.h"
#include "base/result.h"
#include "server/node_table.h"

namespace kvik::server {

// What a node's /health says; `url` is where it was asked: peers reach a node that listens on every
// address where the router does. kInvalidInput.
[[nodiscard]] Result<NodeFacts> ParseHealth(std::string_view json, const std::string& url);

class NodeProber {
 public:
  // `nodes` must outlive the prober. Each round asks every node at once; `after_round` is called
  // when all have answered, or not, on the prober's thread; may be empty.
  NodeProber(NodeTable& nodes, int64_t interval_us, std::function<void()> after_round = {});
  ~NodeProber();
  NodeProber(const NodeProber&) = delete;
  NodeProber& operator=(const NodeProber&) = delete;

  // Begins the next round now, or right after the one that goes on. Any thread.
  void Wake();

 private:
  void Round();

  NodeTable& nodes_;
  const int64_t interval_us_;
  const std::function<void()> after_round_;
  BoundedQueue<bool> wake_{1};
  std::thread thread_;
};

}  // namespace kvik::server
