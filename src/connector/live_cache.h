// SPDX-License-Identifier: Apache-2.0
// connector/live_cache.h: the engine's own cache as a source for peers: prefill nodes hand KV over
// from here, decode nodes hand it back.
//
// A peer looks up the block hashes of its request. What is being computed here for a running
// request is announced; what may be resident is asked of the engine (kv::Wanted), which pins it.
// The peer then gets chunks in the encoding that it names: each is encoded once all of its blocks
// are sealed, layer by layer, and sent while the next layer is encoded. Blocks that nobody comes
// for are let go after a lease, or at once when the engine needs room.
//
// Only KV that nobody approximated is encoded by a lossy profile; KV that depends on approximated
// blocks goes out losslessly, with the quality it has.
//
// Thread-safe: the connector calls from the engine's thread, the node from the endpoint's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "connector/counters.h"
#include "connector/io_pool.h"
#include "connector/profile_set.h"
#include "kv/connector.h"
#include "transfer/object_server.h"

namespace kvik::connector {

struct LiveCacheOptions {
  int64_t lease_us = 10'000'000;  // that blocks are kept for a peer that was told of them
  // Of the pool's blocks, that are kept for peers at most.
  double max_held_share = 0.5;
  size_t max_lookups = 1024;  // remembered; the oldest is forgotten first
};

class LiveCache : public std::enable_shared_from_this<LiveCache> {
 public:
  // How the cache speaks to the engine; may be called from any thread, never under its lock.
  using Emit = std::function<void(kv::ConnectorEvent)>;

  static std::shared_ptr<LiveCache> Create(const LiveCacheOptions& options,
                                           std::shared_ptr<const ProfileSet> profiles, IoPool& io,
                                           const Clock& clock);
  virtual ~LiveCache() = default;

  // ---- The connector's side, engine thread ----
  virtual void Attach(const kv::ConnectorHost& host, Emit emit) = 0;
  // No thread reads the arena afterwards; what is held counts as released.
  virtual void Detach() = 0;
  // A request will compute these blocks; `for_peer`: keep all of it for a lease.
  virtual void Begin(kv::TicketId ticket, std::span<const kv::ContentKey> keys, bool for_peer) = 0;
  virtual void End(kv::TicketId ticket) = 0;
  // Whether it keeps them: each is then released by an event.
  [[nodiscard]] virtual bool Offer(const kv::SealedBlocks& sealed) = 0;
  // Lets go of blocks that no peer is reading; how many.
  virtual int32_t NeedRoom(int32_t missing_blocks) = 0;
  // Ends leases that are over.
  virtual void Sweep() = 0;

  // ---- The node's side, any thread ----
  virtual void Lookup(const transfer::CallContext& context, transfer::LookupRequest request,
                      std::shared_ptr<transfer::LookupReply> reply) = 0;
  // Object `index` of the reply. `done`: once it has ended or failed there.
  virtual void Get(const transfer::CallContext& context, const kv::ObjectKey& key, size_t index,
                   std::shared_ptr<transfer::GetReply> reply, std::function<void()> done) = 0;

  virtual void AddTo(ConnectorCounters& counters) const = 0;
};

}  // namespace kvik::connector
