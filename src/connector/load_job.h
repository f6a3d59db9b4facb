// SPDX-License-Identifier: Apache-2.0
// connector/load_job.h: a request that is being looked up and loaded, and the objects it waits for.
// Plain data under the connector's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "connector/chunk_load.h"
#include "connector/load_choice.h"
#include "kv/connector.h"

namespace kvik::connector {

struct Ticket;

// One object on its way.
struct LoadJob {
  LoadCandidate what;
  std::vector<BlockId> blocks;      // [what.object.num_blocks], kNoBlock where not wanted
  kv::BlockRange wanted;            // for which there are blocks
  std::shared_ptr<ChunkLoad> load;  // null: not asked for yet
  int64_t asked_us = 0;
  int64_t deadline_us = 0;
  kv::LoadEnd why_ended = kv::LoadEnd::kGivenUp;  // if it is cancelled

  // Of other requests, those who wait for this one to bring the same blocks.
  struct Sharer {
    std::shared_ptr<Ticket> ticket;
    std::shared_ptr<LoadJob> job;
  };
  std::vector<Sharer> sharers;
  bool copying = false;           // it has come and is being copied: nobody joins or leaves
  std::weak_ptr<LoadJob> loader;  // whom this one waits for
  bool shared = false;            // it came by another request's load
};
using LoadJobPtr = std::shared_ptr<LoadJob>;

struct Ticket {
  kv::TicketId id = 0;
  LoadFacts facts;
  int64_t asked_us = 0;
  int64_t slo_us = 0;
  bool resumed = false;
  std::vector<kv::BlockRange> resident;  // when it was asked for
  int32_t resident_blocks = 0;           // of these
  std::shared_ptr<const kv::TransferParams> transfer;
  std::optional<size_t> peer;            // the source that `transfer` names
  std::shared_ptr<const void> peer_use;  // while it is held, `peer` stays that source
  bool closed = false;

  int answers_missing = 0;
  std::vector<FoundAt> found;

  std::vector<LoadCandidate> planned;  // claimed, without blocks yet
  std::vector<LoadJobPtr> waiting;     // ascending; the last one is asked for next
  std::vector<LoadJobPtr> running;
  std::vector<LoadJobPtr> sharing;  // wait for loads of other requests
  bool failed = false;              // Failed was said
  bool incomplete = false;          // something did not come
  std::vector<SourceDecision> decisions;
  control::LoadPlan plan;
  std::string why;

  int64_t first_asked_us = 0;  // of its loads; 0: none
  int64_t produced_us = 0;     // when the peer had computed the last of it; 0: it was there
  int64_t last_arrived_us = 0;
  int32_t priority = 64;
  int32_t arrived_blocks = 0;
  uint64_t wire_bytes = 0;
  uint64_t raw_bytes = 0;
  int64_t encode_us = 0;  // of the sender's threads
  int64_t decode_us = 0;
  double wire_us = 0;
  std::string profile;
  std::string tier;
};
using TicketPtr = std::shared_ptr<Ticket>;

}  // namespace kvik::connector
