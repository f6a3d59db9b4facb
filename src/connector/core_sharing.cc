// SPDX-License-Identifier: Apache-2.0
// Requests that lack the same blocks: one loads them, the others wait for it and get a copy.
//
// Only what is being loaded is waited for, and who waits loads nothing in its place, so nobody can
// wait in a circle. When a load ends without its blocks, those who waited load them themselves.
#include <cstring>

#include "connector/core.h"

namespace kvik::connector {

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
  for (const JobIndex::Entry& entry : jobs_.WaitingFor(*loader, owner)) {
    StopWaiting(*entry.ticket, entry.job);
    Share(loader, entry.ticket, entry.job);
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
      Wait(sharer.ticket, job);
    }
    go_on.push_back(sharer.ticket);
  }
  for (const TicketPtr& ticket : go_on) {
    GoOn(ticket, later);
  }
}

}  // namespace kvik::connector
