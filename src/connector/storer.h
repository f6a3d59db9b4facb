// SPDX-License-Identifier: Apache-2.0
// connector/storer.h: new KV on its way to the stores: sealed blocks are gathered into chunks,
// encoded in the background and given to every target, in every profile that is kept.
//
// A chunk is stored once all of its blocks are here; those that were resident before are asked of
// the engine (kv::Wanted). The last chunk of a request is stored when the request ends. Only exact
// KV is encoded by a lossy profile, so nothing is approximated twice.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "connector/counters.h"
#include "connector/event_queue.h"
#include "connector/io_pool.h"
#include "connector/live_cache.h"
#include "connector/profile_set.h"
#include "connector/scratch_pool.h"
#include "connector/source.h"
#include "kv/connector.h"

namespace kvik::connector {

struct StorerOptions {
  std::vector<const CodecProfile*> profiles;
  std::vector<std::shared_ptr<ObjectTarget>> targets;
  kv::BlockHash root;             // the parent of a first block
  double max_share = 0.25;        // of the pool's blocks, that may wait
  int64_t gather_us = 2'000'000;  // a chunk that is not whole by then is completed or given up
  int64_t put_timeout_us = 30'000'000;
  uint64_t max_bytes_in_flight = uint64_t{256} << 20;  // encoded and not stored yet
  size_t max_known = 65536;                            // objects remembered as stored
};

class Storer {
 public:
  // `io`, `scratch`, `wants` and `clock` outlive it.
  static std::shared_ptr<Storer> Create(StorerOptions options, IoPool& io, ScratchPool& scratch,
                                        WantIds& wants, const Clock& clock);
  virtual ~Storer() = default;

  // As in LiveCache, engine thread.
  virtual void Attach(const kv::ConnectorHost& host, std::shared_ptr<EventQueue> events) = 0;
  // What still waits to be encoded is let go: stop `io` first, whose threads do it before they end.
  virtual void Detach() = 0;
  virtual void Begin(kv::TicketId ticket, std::span<const kv::ContentKey> keys) = 0;
  virtual void End(kv::TicketId ticket) = 0;
  [[nodiscard]] virtual bool Wants(const kv::SealedBlocks& sealed) const = 0;
  virtual void Take(const kv::SealedBlocks& sealed, std::span<const HeldBlockPtr> held) = 0;
  virtual int32_t NeedRoom(int32_t missing_blocks) = 0;
  virtual void Sweep() = 0;
  virtual void AddTo(ConnectorCounters& counters) const = 0;

  // Somebody found this object: it need not be stored again.
  virtual void Known(const kv::ObjectKey& key) = 0;
  // Waits until nothing is being encoded or stored. With an IoPool without threads: until there is
  // nothing that can be done without waiting.
  virtual void Flush() = 0;
};

}  // namespace kvik::connector
