// SPDX-License-Identifier: Apache-2.0
#include "server/node_events.h"

#include <utility>

namespace kvik::server {

void NodeEvents::Sync() {
  std::map<uint64_t, events::EventSource> sources;
  for (const NodeState& node : nodes_.Nodes()) {
    if (const auto& events = node.facts.events) {
      sources.emplace(node.id, *events);
    }
  }
  follower_.Follow(std::move(sources));
}

}  // namespace kvik::server
