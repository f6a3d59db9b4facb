// SPDX-License-Identifier: Apache-2.0
// kv/connector.h: the seam through which KV enters the pool from elsewhere and leaves it.
//
// The engine sees nothing of stores, peers and codecs but this interface. A *ticket* stands for one
// stay of a request with the engine, from Ask to Close; a preempted request comes back with a new
// one. Blocks of a request are numbered by position (kv/block_range.h).
//
// KV that comes in:
//
//   Ask     the engine has a new request: which blocks could be loaded? The look-up goes on beside
//           the engine; the request waits for the answer, not for long, and nobody waits behind it
//   Answered (event)  the look-up is over, or more is known than before
//   Claim   the request is admitted, or Answered came again: the connector decides which of the
//           blocks that are still missing it will load, normally the tail of them
//   Load    here are pool blocks for what was claimed; I/O threads write their bytes
//   Arrived, NotComing (events)  no thread writes to these blocks any more; they hold KV, or not
//   Yield   all that could be computed in front of a claimed block is computed: wait, or give up?
//   Close   the request has ended or was preempted: stop what still goes on for it
//
// The engine computes from the front meanwhile and jumps over what has arrived. A block that does
// not come is computed, so a load can only save time, never cost an answer. Every block of a Load
// is confirmed by exactly one Arrived or NotComing, after Close just the same; until then it stays
// allocated, whatever became of its request: no thread ever writes to a block that was freed, and
// none is lost.
//
// KV that goes out:
//
//   Offer   sealed blocks, as a suggestion. The connector may take them: the engine then holds a
//           reference for it, so that I/O threads can read bytes that will not change
//   Wanted (event)  the connector asks for blocks by content; what is resident comes as an Offer
//   Released (event)  taken blocks are no longer read
//
// Threads: the engine thread calls every method; none may block on I/O, on a lock that is held
// during I/O, or on the caller. The connector calls the engine only through Host::wake, from any
// thread, after it has queued events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "kv/block_key.h"
#include "kv/block_range.h"
#include "kv/geometry.h"

namespace kvik::kv {

using TicketId = uint64_t;  // chosen by the engine, not reused while attached, never 0
using WantId = uint64_t;    // chosen by the connector, never 0

// What the engine shares with its connector.
struct ConnectorHost {
  // All blocks' bytes as kv/geometry.h lays them out; empty if the executor has none (tests).
  // Threads of the connector may write blocks between Load and their confirmation, and read blocks
  // between a taken Offer and Released. Nothing else of it is theirs.
  std::span<std::byte> arena;
  std::optional<KvGeometry> geometry;  // of the arena
  int32_t num_blocks = 0;
  int32_t block_size_tokens = 0;
  NumericsTag numerics;  // of what this engine computes: KV with another one is not exact here
  // Wakes the engine if it sleeps; cheap. May be empty: then the engine is stepped by hand.
  std::function<void()> wake;
};

// How the KV of a request moves between two servers. The engine passes it on and does not look.
struct TransferParams {
  std::string peer;            // where the KV is or is being computed; empty: nowhere in particular
  std::string remote_request;  // the request's name there
  bool for_peer = false;       // a peer will come for this request's KV: keep it for a lease
};

// A request as the connector hears of it. Spans are borrowed for the call.
struct LoadRequest {
  TicketId ticket = 0;
  uint64_t request = 0;              // engine::RequestId
  std::span<const ContentKey> keys;  // [full blocks]
  // Of the keys, how many may be loaded: the last token's block is always computed.
  int32_t num_loadable = 0;
  std::vector<BlockRange> resident;  // usable now, ascending; may change until Claim
  int32_t num_tokens = 0;            // of the prompt, and what was generated before a preemption
  MinQuality quality;                // with the workload's tag
  std::string workload;              // label; empty: not known
  int64_t slo_ttft_us = 0;           // from submitted_us; 0: none
  int64_t slo_us = 0;                // of the whole job, likewise
  int64_t submitted_us = 0;
  bool resumed = false;                            // it was preempted
  std::shared_ptr<const TransferParams> transfer;  // may be null
};

// Why the engine closes a ticket.
enum class CloseReason {
  kFinished,   // the answer is complete
  kAborted,    // the client left
  kFailed,     // the step failed, or the connector said Failed
  kPreempted,  // it comes back with another ticket
};

// What became of the request. Microseconds of the engine's clock; 0 = has not happened.
struct TicketFate {
  CloseReason reason = CloseReason::kFinished;
  int64_t scheduled_us = 0;
  int64_t first_token_us = 0;
  int64_t closed_us = 0;
};

// What moving KV for one request was like, for people to read. The engine passes it on with the
// request's last output.
struct TransferReport {
  std::string profile;  // of what was loaded; empty: nothing was
  std::string tier;     // where it came from
  std::string why;      // the reasons for the choice
  int64_t wire_bytes = 0;
  int64_t raw_bytes = 0;  // of the same KV in the pool
  int64_t predicted_us = 0;
  int64_t observed_us = 0;
  int64_t prefill_us = 0;  // on the other side
  int64_t encode_us = 0;
  int64_t wire_us = 0;
  int64_t decode_us = 0;
};

// One sealed block. Its bytes do not change while the connector holds it.
struct SealedBlock {
  BlockKey key;  // with the host's numerics tag
  BlockId block = kNoBlock;
  BlockQuality quality;
  int32_t first_pos = 0;  // position of its first token; -1: not known
};

// Ascending by position. Borrowed for the call.
struct SealedBlocks {
  TicketId ticket = 0;  // of the request that computed them; 0: this answers a Wanted
  WantId want = 0;      // which one
  std::span<const SealedBlock> blocks;
};

// ---- Events ----

// The look-up for a ticket is over, or there is more to claim than before. The engine calls Claim
// at the request's admission, or at once if it is admitted.
struct Answered {
  TicketId ticket = 0;
};

// Slots [first_token, end_token) of one layer and kv head that attention must leave out (positions
// of the request, all within the blocks of the event).
struct DroppedTokens {
  int32_t layer = 0;
  int32_t kv_head = 0;
  int32_t first_token = 0;
  int32_t end_token = 0;
};

// These blocks hold their KV, all layers of it, and no thread writes to them any more. `quality` is
// kLossy when slots were dropped, when the bytes are approximate, when they came from other
// numerics, or when what they were computed from was any of these; then q is the least of all.
struct Arrived {
  TicketId ticket = 0;
  BlockRange range;
  BlockQuality quality;
  std::vector<DroppedTokens> dropped;
};

enum class LoadEnd {
  kGivenUp,  // computing is faster by now
  kLate,     // the deadline passed
  kFailed,   // lost, damaged or refused
};

// These blocks are not coming, their bytes mean nothing, and no thread writes to them any more. The
// engine computes them; they may be claimed again.
struct NotComing {
  TicketId ticket = 0;
  BlockRange range;
  LoadEnd why = LoadEnd::kFailed;
};

// The request must not go on without what it asked for: it ends with this error.
struct Failed {
  TicketId ticket = 0;
  Error error;
};

// One reference to each of these is given back. A block that was taken twice is released twice.
struct Released {
  std::vector<BlockId> blocks;
};

// Which of these are resident and good enough? The answer is one Offer with this id, of those that
// are, in the order of `keys`; it may be empty, and it ends early where the pool has promised all
// the room there is to running requests.
struct Wanted {
  WantId want = 0;
  std::vector<ContentKey> keys;
  MinQuality quality;
};

using ConnectorEvent = std::variant<Answered, Arrived, NotComing, Failed, Released, Wanted>;

constexpr int64_t kUntilEvent = std::numeric_limits<int64_t>::max();

class Connector {
 public:
  virtual ~Connector() = default;

  // Before all other calls, once.
  virtual void Attach(const ConnectorHost& host) = 0;
  // After all other calls. When it returns, no thread of the connector touches the arena or calls
  // wake; what was not confirmed or released counts as such. Every ticket is closed before. May
  // wait for writes and reads of blocks that are going on or queued, not for a network or a disk.
  virtual void Detach() = 0;

  // A new request. Answered follows, with whatever is known when the connector's patience ends; the
  // engine does not wait for it longer than its own.
  virtual void Ask(const LoadRequest& request) = 0;

  // Of the blocks in `missing` (ascending, not adjacent; nobody has computed or loads them), which
  // does the connector load? `front_block`: the first block that the engine would have to compute,
  // and it computes upwards from there. Returns ranges within `missing`, ascending; empty: none.
  // The engine hands blocks for them over at once. Called several times if Answered comes again.
  [[nodiscard]] virtual std::vector<BlockRange> Claim(TicketId ticket, int32_t front_block,
                                                      std::span<const BlockRange> missing) = 0;

  // Blocks for claimed ones, in order: blocks[i] becomes block range.first_block + i. The connector
  // writes them as they come and confirms each once, in pieces of any size and order.
  virtual void Load(TicketId ticket, const BlockRange& range, std::span<const BlockId> blocks) = 0;

  // Nothing of this request can be computed before `front_block` is there, which is being loaded.
  // The connector compares when it comes with what computing costs, and either waits or gives
  // blocks up: those are confirmed by NotComing as soon as no thread writes to them, which takes no
  // longer than decoding what is under way; best before Yield returns. It may give blocks up at any
  // other time too. Returns when to ask again, in the engine's clock, if the request still stands
  // there; kUntilEvent: not before an event.
  [[nodiscard]] virtual int64_t Yield(TicketId ticket, int32_t front_block) = 0;

  // The request wants nothing more. Loads that go on are stopped as for Yield and confirmed; no
  // other event of the ticket follows. Returns what there is to tell; may be null.
  virtual std::shared_ptr<const TransferReport> Close(TicketId ticket, const TicketFate& fate) = 0;

  // Blocks that were just sealed, or that were Wanted. True: the connector takes all of them and
  // releases each in bounded time; false: none. What arrived by Load is not offered.
  [[nodiscard]] virtual bool Offer(const SealedBlocks& sealed) = 0;

  // Requests wait because the pool has `missing_blocks` too few, and the connector holds some: it
  // should release those it can do without. Called once a step while that lasts.
  virtual void NeedRoom(int32_t missing_blocks) = 0;

  // The events since the last call, in order.
  [[nodiscard]] virtual std::vector<ConnectorEvent> Poll() = 0;
};

}  // namespace kvik::kv
