// SPDX-License-Identifier: Apache-2.0
// engine/testing/fake_connector.h: a kv::Connector that does what a test tells it, and checks that
// the engine keeps its side of the contract.
//
// Without hooks it answers every Ask at once, claims nothing and takes nothing. What it was lent it
// remembers until the test confirms it (Arrive, Fail). Thread-safe as far as threads matter to the
// engine: events may be pushed from any thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "kv/connector.h"

namespace kvik::engine {

class FakeConnector final : public kv::Connector {
 public:
  // A ticket as the connector knows it.
  struct Ticket {
    kv::LoadRequest request;           // `keys` points into the next
    std::vector<kv::ContentKey> keys;  // [full blocks]
    bool closed = false;
    kv::TicketFate fate;
    std::map<int32_t, BlockId> loading;  // by number
    std::vector<kv::BlockRange> loads;   // every Load there was
    int32_t yields = 0;
  };

  std::function<void(Ticket&)> on_ask;  // empty: answers at once
  std::function<std::vector<kv::BlockRange>(Ticket&, int32_t front_block,
                                            std::span<const kv::BlockRange> missing)>
      on_claim;
  std::function<void(Ticket&, const kv::BlockRange&)> on_load;
  std::function<int64_t(Ticket&, int32_t front_block)> on_yield;
  std::function<std::shared_ptr<const kv::TransferReport>(Ticket&)> on_close;
  std::function<bool(const kv::SealedBlocks&)> on_offer;
  std::function<void(int32_t missing_blocks)> on_need_room;

  std::map<kv::TicketId, Ticket> tickets;
  std::multiset<BlockId> held;  // taken, not released
  bool attached = false;
  kv::ConnectorHost host;

  // Any thread. Queues an event and wakes the engine.
  void Push(kv::ConnectorEvent event) KVIK_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    events_.push_back(std::move(event));
    if (host.wake) {
      host.wake();  // under the lock, so that Detach waits for it
    }
  }
  void Arrive(Ticket& ticket, const kv::BlockRange& range, kv::BlockQuality quality = {},
              std::vector<kv::DroppedTokens> dropped = {}) {
    Confirm(ticket, range);
    Push(kv::Arrived{ticket.request.ticket, range, quality, std::move(dropped)});
  }
  void Fail(Ticket& ticket, const kv::BlockRange& range, kv::LoadEnd why = kv::LoadEnd::kFailed) {
    Confirm(ticket, range);
    Push(kv::NotComing{ticket.request.ticket, range, why});
  }
  void Release(const std::vector<BlockId>& blocks) {
    for (const BlockId block : blocks) {
      const auto it = held.find(block);
      KVIK_CHECK(it != held.end());
      held.erase(it);
    }
    Push(kv::Released{blocks});
  }
  // The only ticket of a request that is open.
  [[nodiscard]] Ticket& OpenTicketOf(uint64_t request) {
    for (auto& [id, ticket] : tickets) {
      if (ticket.request.request == request && !ticket.closed) {
        return ticket;
      }
    }
    CheckFailed(__FILE__, __LINE__, "the request has no open ticket");
  }
  [[nodiscard]] size_t num_loading() const {
    size_t count = 0;
    for (const auto& [id, ticket] : tickets) {
      count += ticket.loading.size();
    }
    return count;
  }

  // kv::Connector.
  void Attach(const kv::ConnectorHost& attached_to) override {
    KVIK_CHECK(!attached);
    attached = true;
    tickets.clear();
    host = attached_to;
  }
  void Detach() override KVIK_EXCLUDES(mutex_) {
    KVIK_CHECK(attached);
    attached = false;
    for (auto& [id, ticket] : tickets) {
      KVIK_CHECK(ticket.closed);
      ticket.loading.clear();
    }
    held.clear();
    MutexLock lock(mutex_);
    host = {};
  }
  void Ask(const kv::LoadRequest& request) override {
    KVIK_CHECK(attached && request.ticket != 0);
    KVIK_CHECK(static_cast<size_t>(request.num_loadable) <= request.keys.size());
    const auto [it, inserted] = tickets.try_emplace(request.ticket);
    KVIK_CHECK(inserted, "a ticket was used twice");
    Ticket& ticket = it->second;
    ticket.request = request;
    ticket.keys.assign(request.keys.begin(), request.keys.end());
    ticket.request.keys = ticket.keys;
    if (on_ask) {
      on_ask(ticket);
    } else {
      Push(kv::Answered{request.ticket});
    }
  }
  std::vector<kv::BlockRange> Claim(kv::TicketId id, int32_t front_block,
                                    std::span<const kv::BlockRange> missing) override {
    Ticket& ticket = Open(id);
    KVIK_CHECK(!missing.empty());
    int32_t end = -1;  // ascending, not adjacent, not below the front, not being loaded
    for (const kv::BlockRange& range : missing) {
      KVIK_CHECK(range.num_blocks >= 1 && range.first_block > end &&
                 range.first_block >= front_block &&
                 range.end_block() <= ticket.request.num_loadable);
      end = range.end_block();
      const auto it = ticket.loading.lower_bound(range.first_block);
      KVIK_CHECK(it == ticket.loading.end() || it->first >= end);
    }
    return on_claim ? on_claim(ticket, front_block, missing) : std::vector<kv::BlockRange>();
  }
  void Load(kv::TicketId id, const kv::BlockRange& range,
            std::span<const BlockId> blocks) override {
    Ticket& ticket = Open(id);
    KVIK_CHECK(blocks.size() == static_cast<size_t>(range.num_blocks));
    ticket.loads.push_back(range);
    for (size_t i = 0; i < blocks.size(); ++i) {
      KVIK_CHECK(
          ticket.loading.emplace(range.first_block + static_cast<int32_t>(i), blocks[i]).second);
    }
    if (on_load) {
      on_load(ticket, range);
    }
  }
  int64_t Yield(kv::TicketId id, int32_t front_block) override {
    Ticket& ticket = Open(id);
    ++ticket.yields;
    return on_yield ? on_yield(ticket, front_block) : kv::kUntilEvent;
  }
  std::shared_ptr<const kv::TransferReport> Close(kv::TicketId id,
                                                  const kv::TicketFate& fate) override {
    Ticket& ticket = Open(id);
    ticket.closed = true;
    ticket.fate = fate;
    return on_close ? on_close(ticket) : nullptr;
  }
  bool Offer(const kv::SealedBlocks& sealed) override {
    KVIK_CHECK((sealed.ticket == 0) != (sealed.want == 0));
    if (!on_offer || !on_offer(sealed)) {
      return false;
    }
    for (const kv::SealedBlock& block : sealed.blocks) {
      held.insert(block.block);
    }
    return true;
  }
  void NeedRoom(int32_t missing_blocks) override {
    KVIK_CHECK(missing_blocks >= 1 && !held.empty());
    if (on_need_room) {
      on_need_room(missing_blocks);
    }
  }
  std::vector<kv::ConnectorEvent> Poll() override KVIK_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return std::exchange(events_, {});
  }

 private:
  Ticket& Open(kv::TicketId id) {
    const auto it = tickets.find(id);
    KVIK_CHECK(attached && it != tickets.end() && !it->second.closed);
    return it->second;
  }
  static void Confirm(Ticket& ticket, const kv::BlockRange& range) {
    for (int32_t i = range.first_block; i < range.end_block(); ++i) {
      KVIK_CHECK(ticket.loading.erase(i) == 1);
    }
  }

  Mutex mutex_;
  std::vector<kv::ConnectorEvent> events_ KVIK_GUARDED_BY(mutex_);
};

}  // namespace kvik::engine
