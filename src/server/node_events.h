// SPDX-License-Identifier: Apache-2.0
// server/node_events.h: follows the KV events of the nodes of a router.
#pragma once

#include <cstdint>
#include <map>

#include "base/clock.h"
#include "events/follower.h"
#include "server/block_holders.h"
#include "server/node_table.h"

namespace kvik::server {

// Thread-safe.
class NodeEvents {
 public:
  // References must outlive this.
  NodeEvents(const NodeTable& nodes, BlockHolders& holders, const Clock& clock)
      : nodes_(nodes), follower_(holders, clock) {}

  // Follows the nodes that are there now, each since its last start. To be called whenever that may
  // have changed.
  void Sync();

  // By NodeState::id.
  [[nodiscard]] std::map<uint64_t, events::FollowStats> stats() const { return follower_.stats(); }

 private:
  const NodeTable& nodes_;
  events::Follower follower_;
};

}  // namespace kvik::server
