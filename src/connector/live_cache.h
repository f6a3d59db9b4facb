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

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "connector/counters.h"
#include "connector/event_queue.h"
#include "connector/io_pool.h"
#include "connector/profile_set.h"
#include "connector/scratch_pool.h"
#include "kv/connector.h"
#include "kv/cost_model.h"
#include "transfer/object_server.h"

namespace kvik::connector {

struct LiveCacheOptions {
  int64_t lease_us = 10'000'000;  // that blocks are kept for a peer that was told of them
  // Of the pool's blocks, that are kept for peers at most.
  double max_held_share = 0.5;
  // Block hashes of lookups that are remembered; the oldest lookup is forgotten first.
  size_t max_remembered_blocks = 262'144;
  kv::CostModel compute;  // how long until what is being computed is there
  kv::BlockHash root;     // the parent of a first block
};

// Chosen by the connector, so that answers find whoever asked.
class WantIds {
 public:
  [[nodiscard]] kv::WantId Next() { return next_.fetch_add(1); }

 private:
  std::atomic<kv::WantId> next_{1};
};

// Makes one object of a Get. What the reply's listener hears is passed on to it.
class ObjectProducer {
 public:
  virtual ~ObjectProducer() = default;
  virtual void OnRoom() = 0;
  // Nobody wants it any more.
  virtual void Stop() = 0;
};

class LiveCache {
 public:
  // `io`, `scratch`, `wants` and `clock` outlive it.
  static std::shared_ptr<LiveCache> Create(const LiveCacheOptions& options,
                                           std::shared_ptr<const ProfileSet> profiles, IoPool& io,
                                           ScratchPool& scratch, WantIds& wants,
                                           const Clock& clock);
  virtual ~LiveCache() = default;

  // ---- The connector's side, engine thread ----
  virtual void Attach(const kv::ConnectorHost& host, std::shared_ptr<EventQueue> events) = 0;
  // Nothing is asked or held afterwards, and nothing new read; tasks of `io` may still end.
  virtual void Detach() = 0;
  // A request will compute or load these blocks; `for_peer`: all of it is kept for a lease.
  virtual void Begin(kv::TicketId ticket, std::span<const kv::ContentKey> keys, bool for_peer) = 0;
  virtual void End(kv::TicketId ticket) = 0;
  // Whether Take is to be called for this offer.
  [[nodiscard]] virtual bool Wants(const kv::SealedBlocks& sealed) const = 0;
  virtual void Take(const kv::SealedBlocks& sealed, std::span<const HeldBlockPtr> held) = 0;
  // Lets go of blocks that no peer is reading; how many.
  virtual int32_t NeedRoom(int32_t missing_blocks) = 0;
  // Ends leases and calls that are over.
  virtual void Sweep() = 0;
  virtual void AddTo(ConnectorCounters& counters) const = 0;

  // ---- The node's side, any thread ----
  // `done` gets runs of blocks that are there or will be (with profile kAnyProfile), once, by the
  // context's deadline.
  virtual void Lookup(const transfer::CallContext& context, const transfer::LookupRequest& request,
                      std::function<void(std::vector<transfer::FoundObject>)> done) = 0;
  // Object `index` of `reply`, in the encoding that the key names and of `num_blocks` blocks (0:
  // from the beginning of the profile's chunk); `done` once it has ended or failed there.
  virtual std::shared_ptr<ObjectProducer> Get(const transfer::CallContext& context,
                                              const kv::ObjectKey& key, int32_t num_blocks,
                                              size_t index,
                                              std::shared_ptr<transfer::GetReply> reply,
                                              std::function<void()> done) = 0;
};

}  // namespace kvik::connector
