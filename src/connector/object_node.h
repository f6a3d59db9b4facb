// SPDX-License-Identifier: Apache-2.0
// connector/object_node.h: what this process serves to others: its store (a pool node), the live
// cache of its engine (a prefill or decode node), or both.
//
//   auto node = ObjectNode::Create(options, store, clock);
//   auto server = transfer::MakeObjectServer(*node);
//   auto endpoint = transfer::Endpoint::Create(..., server.get());
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "connector/io_pool.h"
#include "connector/live_cache.h"
#include "store/store.h"
#include "transfer/object_server.h"

namespace kvik::connector {

// Calls with this number are answered by the node itself: the request is a u32, the answer has so
// many bytes.
inline constexpr uint16_t kProbeCall = 0xF000;
inline constexpr uint32_t kMaxProbeBytes = 4U << 20;

struct ObjectNodeOptions {
  int io_threads = 2;  // for the store's blocking calls; 0: RunDue
  uint64_t max_put_bytes = uint64_t{1} << 30;
  // Application's calls (ObjectHandler::Call); null: refused.
  std::function<void(const transfer::CallContext&, uint16_t number, transfer::SharedBytes request,
                     std::shared_ptr<transfer::CallReply> reply)>
      call;
  std::function<void(const transfer::Peer&)> on_peer_connected;
  std::function<void(const transfer::Peer&, const Error&)> on_peer_gone;
};

struct ObjectNodeCounters {
  int64_t lookups = 0;
  int64_t gets = 0;  // objects
  int64_t get_misses = 0;
  uint64_t sent_bytes = 0;
  int64_t puts = 0;
  int64_t put_failures = 0;
  uint64_t received_bytes = 0;
  int64_t peers = 0;  // now
};

class ObjectNode : public transfer::ObjectHandler {
 public:
  // `store` may be null; it and `clock` outlive the node. Close the endpoint before the node goes.
  static std::unique_ptr<ObjectNode> Create(ObjectNodeOptions options, store::Store* store,
                                            const Clock& clock);

  // Null: none. Takes effect for calls that come later.
  virtual void SetLive(std::shared_ptr<LiveCache> live) = 0;
  [[nodiscard]] virtual ObjectNodeCounters counters() const = 0;
  // Without threads: as IoPool::RunDue.
  virtual bool RunDue() = 0;
};

}  // namespace kvik::connector
