// SPDX-License-Identifier: Apache-2.0
// engine/kv_exchange.h: the engine's side of kv::Connector: which request has which ticket, which
// blocks are being loaded, and where every prompt's KV came from.
//
// It is the scheduler's BlockLoader: it asks the connector about new requests, claims at admission,
// hands blocks over, and turns events into states of the cache. Owned by the engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "engine/request.h"
#include "kv/connector.h"
#include "kv/kv_cache.h"
#include "sched/scheduler.h"

namespace kvik::engine {

// Counters since the start and gauges of now. Blocks, unless the name says otherwise.
struct KvExchangeStats {
  int64_t tickets = 0;
  int64_t unanswered = 0;    // requests that were let in before the connector had answered
  int64_t query_tokens = 0;  // that the connector was asked to claim, at first admissions
  int64_t claimed = 0;       // = loading + arrived + refused + given_up + late + failed + abandoned
  int64_t arrived = 0;       // and are used by their requests
  int64_t duplicates = 0;    // of the arrived: a resident block was used instead
  int64_t refused = 0;       // arrived, but not good enough for the request
  int64_t given_up = 0;      // these three by why they did not come
  int64_t late = 0;
  int64_t failed = 0;
  int64_t abandoned = 0;  // confirmed after their request had gone
  int64_t offered = 0;
  int64_t taken = 0;  // of the offered
  int64_t released = 0;
  int32_t loading = 0;  // now
  int32_t held = 0;     // now, by the connector
};

class KvExchange final : public sched::BlockLoader {
 public:
  struct Options {
    int64_t max_answer_wait_us = 0;    // a new request waits for Answered no longer
    int64_t max_promised_wait_us = 0;  // nor one whose KV a peer has promised
    // Called with blocks whose bytes others will write from now on. May be empty.
    std::function<void(std::span<const BlockId>)> lend;
  };

  // Attaches the connector. All must outlive the exchange.
  KvExchange(kv::Connector& connector, const kv::ConnectorHost& host, kv::KvCache& cache,
             const Clock& clock, Options options);
  // Detaches it and gives back what it held. REQUIRES: every request was closed.
  ~KvExchange() override;
  KvExchange(const KvExchange&) = delete;
  KvExchange& operator=(const KvExchange&) = delete;

  // Before the scheduler hears of a request: what of it concerns the connector.
  void Register(RequestId id, const Request& request, int32_t prompt_tokens, int64_t submitted_us);
  // The request has ended; its blocks are about to be released. REQUIRES: registered.
  std::shared_ptr<const kv::TransferReport> Close(RequestId id, const kv::TicketFate& fate);

  // sched::BlockLoader.
  bool Added(RequestId id, kv::Sequence& sequence) override;
  void Admitted(RequestId id, kv::Sequence& sequence) override;
  void Preempted(RequestId id, kv::Sequence& sequence) override;

  // What the engine has to do about the events since the last call.
  struct News {
    std::vector<RequestId> let_in;                    // Scheduler::LetIn
    std::vector<std::pair<RequestId, Error>> failed;  // end them
  };
  // Takes events, asks those that stand still whether to wait, and looks at the clock. Once a step,
  // before it is planned, and whenever the connector wakes an idle engine.
  [[nodiscard]] News Poll();

  // Offers what was sealed since the last call. REQUIRES: registered, admitted.
  void OfferSealed(RequestId id, const kv::Sequence& sequence);
  // Requests wait for blocks.
  void NeedRoom(int32_t missing_blocks);

  // When Poll has something to do without an event; kv::kUntilEvent: never.
  [[nodiscard]] int64_t next_poll_us() const;
  // Of the prompt, loaded blocks that were not hits of the cache at first. Each counts once.
  [[nodiscard]] int32_t external_blocks(RequestId id) const;
  [[nodiscard]] KvExchangeStats stats() const;

 private:
  // Of a request, from Register to Close.
  struct Stay;

  Stay& At(RequestId id) const;
  void Ask(Stay& stay, kv::Sequence& sequence, bool resumed);
  void Claim(Stay& stay);
  void AskBlocked();
  void TakeEvents(News& news);
  void On(const kv::Answered& event, News& news);
  void On(const kv::Arrived& event, News& news);
  void On(const kv::NotComing& event, News& news);
  void On(const kv::Failed& event, News& news);
  void On(const kv::Released& event, News& news);
  void On(const kv::Wanted& event, News& news);
  [[nodiscard]] bool IsPlausible(const kv::Arrived& event) const;
  void Confirm(kv::TicketId ticket, const kv::BlockRange& range, const kv::Arrived* arrived,
               int64_t& not_coming);
  void DropTokens(BlockId block, int32_t block_index,
                  const std::vector<kv::DroppedTokens>& dropped);
  void LetIn(Stay& stay, News& news);
  void OfferBlocks(const kv::SealedBlocks& sealed);

  kv::Connector& connector_;
  kv::KvCache& cache_;
  const Clock& clock_;
  Options options_;
  std::unordered_map<RequestId, std::unique_ptr<Stay>> stays_;
  std::unordered_map<kv::TicketId, Stay*> open_;  // tickets that are not closed
  // Blocks by ticket and number that the connector writes, of closed tickets, too.
  std::unordered_map<kv::TicketId, std::unordered_map<int32_t, BlockId>> loads_;
  std::unordered_set<RequestId> loading_;               // requests with blocks in loads_
  std::set<std::pair<int64_t, kv::TicketId>> answers_;  // due times of held-back requests
  std::unordered_map<BlockId, int32_t> held_;
  kv::TicketId last_ticket_ = 0;
  KvExchangeStats totals_;
};

}  // namespace kvik::engine
