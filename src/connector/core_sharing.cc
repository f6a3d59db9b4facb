// SPDX-License-Identifier: Apache-2.0
// Requests that lack the same blocks: one loads them, the others wait for it and get a copy.
//
// Only what is being loaded is waited for, and who waits loads nothing in its place, so nobody can
// wait in a circle. When a load ends without its blocks, those who waited load them themselves.
#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "connector/core.h"

namespace kvik::connector {
namespace {

// Whether `running` brings all that `job` wants. The hash of a block implies those before it.
bool Brings(const LoadJob& running, const LoadFacts& owner, const LoadJob& job,
            const LoadFacts& facts) {
  const auto last = static_cast<size_t>(job.wanted.end_block() - 1);
  return !running.copying && running.what.profile == job.what.profile &&
         running.wanted.first_block <= job.wanted.first_block &&
         running.wanted.end_block() >= job.wanted.end_block() &&
         owner.keys[last] == facts.keys[last];
}

}  // namespace

// A load of another request that brings what `job` wants; null: none.
LoadJobPtr Core::LoaderOf(const LoadJob& job, const Ticket& ticket) const {
  for (const auto& [running, owner] : running_) {
    if (owner.get() != &ticket && !owner->closed &&
        Brings(*running, owner->facts, job, ticket.facts)) {
      return running;
    }
  }
  return nullptr;
}

void Core::Share(const LoadJobPtr& loader, const TicketPtr& ticket, const LoadJobPtr& job) {
  job->asked_us = clock_.NowMicros();
  job->deadline_us = loader->deadline_us;
  job->loader = loader;
  loader->sharers.push_back({ticket, job});
  ticket->sharing.push_back(job);
  if (ticket->first_asked_us == 0) {
    ticket->first_asked_us = job->asked_us;
  }
  ++counters_.shared_loads;
}

// Of other requests, what they would load themselves later.
void Core::ShareWaiting(const LoadJobPtr& loader, const Ticket& owner) {
  for (const auto& [id, ticket] : tickets_) {
    if (ticket.get() == &owner) {
      continue;
    }
    std::vector<LoadJobPtr> waiting;
    for (LoadJobPtr& job : ticket->waiting) {
      if (Brings(*loader, owner.facts, *job, ticket->facts)) {
        Share(loader, ticket, job);
      } else {
        waiting.push_back(std::move(job));
      }
    }
    ticket->waiting = std::move(waiting);
  }
}

// It waits no more. REQUIRES: nothing is being copied to its blocks.
void Core::StopSharing(Ticket& ticket, const LoadJobPtr& job) {
  if (const LoadJobPtr loader = job->loader.lock(); loader != nullptr) {
    std::erase_if(loader->sharers, [&](const LoadJob::Sharer& s) { return s.job == job; });
  }
  job->loader.reset();
  std::erase(ticket.sharing, job);
}

// Its blocks are there and still the loader's: nobody was told of them.
void Core::CopyToSharers(const LoadJob& loader) {
  std::vector<std::pair<BlockId, BlockId>> copies;
  std::span<std::byte> arena;
  size_t block_bytes = 0;
  {
    MutexLock lock(mutex_);
    arena = host_.arena;
    block_bytes = host_.geometry->bytes_per_block();
    for (const LoadJob::Sharer& sharer : loader.sharers) {
      const LoadJob& job = *sharer.job;
      for (int32_t block = job.wanted.first_block; block < job.wanted.end_block(); ++block) {
        copies.emplace_back(
            loader.blocks[static_cast<size_t>(block - loader.what.object.first_block)],
            job.blocks[static_cast<size_t>(block - job.what.object.first_block)]);
      }
    }
  }
  for (const auto& [from, to] : copies) {
    std::memcpy(arena.data() + static_cast<size_t>(to) * block_bytes,
                arena.data() + static_cast<size_t>(from) * block_bytes, block_bytes);
  }
}

void Core::SettleSharers(const LoadJobPtr& loader, const ChunkOutcome& outcome, Later& later) {
  const std::vector<LoadJob::Sharer> sharers = std::exchange(loader->sharers, {});
  std::vector<TicketPtr> go_on;
  for (const LoadJob::Sharer& sharer : sharers) {
    Ticket& ticket = *sharer.ticket;
    const LoadJobPtr& job = sharer.job;
    job->loader.reset();
    std::erase(ticket.sharing, job);
    if (outcome.result.has_value()) {
      ticket.incomplete = true;  // it says nothing about the link
      ChunkOutcome copied;
      copied.quality = outcome.quality;
      copied.fidelity = outcome.fidelity;
      copied.dropped = outcome.dropped;
      job->shared = true;
      if (ticket.tier.empty()) {
        ticket.tier = "shared";
      }
      counters_.shared_blocks += job->wanted.num_blocks;
      Deliver(ticket, *job, copied);
    } else if (outcome.result.error().code == ErrorCode::kTimeout) {
      // Another try would be as late.
      NotComing(ticket, job->wanted, kv::LoadEnd::kLate);
      Fail(ticket, job->what.source, outcome.result.error());
    } else {
      job->asked_us = job->deadline_us = 0;
      const auto place = std::upper_bound(ticket.waiting.begin(), ticket.waiting.end(), job,
                                          [](const LoadJobPtr& a, const LoadJobPtr& b) {
                                            return a->wanted.first_block < b->wanted.first_block;
                                          });
      ticket.waiting.insert(place, job);
    }
    go_on.push_back(sharer.ticket);
  }
  for (const TicketPtr& ticket : go_on) {
    GoOn(ticket, later);
  }
}

}  // namespace kvik::connector
