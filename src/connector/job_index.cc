// SPDX-License-Identifier: Apache-2.0
#include "connector/job_index.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include "base/check.h"

namespace kvik::connector {
namespace {

// Whether `running`, which has a block in common with `job`, brings all that it wants.
bool Covers(const LoadJob& running, const LoadJob& job) {
  return !running.copying && running.wanted.first_block <= job.wanted.first_block &&
         running.wanted.end_block() >= job.wanted.end_block();
}

}  // namespace

size_t JobIndex::KeyHash::operator()(const Key& key) const {
  return kv::ContentKeyHash()(key.block) ^ std::hash<const void*>()(key.profile);
}

JobIndex::Key JobIndex::KeyOf(const LoadJob& job, const Ticket& ticket, int32_t block) {
  return {ticket.facts.keys[static_cast<size_t>(block)], job.what.profile};
}

void JobIndex::Remove(Places& places, const Key& key, const LoadJob& job) {
  const auto place = places.find(key);
  KVIK_CHECK(place != places.end(), "a job that is not in the index");
  const size_t removed =
      std::erase_if(place->second, [&](const Entry& entry) { return entry.job.get() == &job; });
  KVIK_CHECK(removed == 1, "a job that is not in the index");
  if (place->second.empty()) {
    places.erase(place);
  }
}

void JobIndex::AddRunning(const LoadJobPtr& job, const TicketPtr& ticket) {
  KVIK_CHECK(running_.emplace(job, ticket).second, "a job runs twice");
  for (int32_t block = job->wanted.first_block; block < job->wanted.end_block(); ++block) {
    running_at_[KeyOf(*job, *ticket, block)].push_back({job, ticket});
  }
}

void JobIndex::RemoveRunning(const LoadJobPtr& job) {
  const auto found = running_.find(job);
  KVIK_CHECK(found != running_.end(), "a job that does not run");
  for (int32_t block = job->wanted.first_block; block < job->wanted.end_block(); ++block) {
    Remove(running_at_, KeyOf(*job, *found->second, block), *job);
  }
  running_.erase(found);
}

std::vector<LoadJobPtr> JobIndex::Running() const {
  std::vector<LoadJobPtr> jobs;
  for (const auto& [job, ticket] : running_) {
    jobs.push_back(job);
  }
  return jobs;
}

void JobIndex::AddWaiting(const LoadJobPtr& job, const TicketPtr& ticket) {
  waiting_[KeyOf(*job, *ticket, job->wanted.end_block() - 1)].push_back({job, ticket});
}

void JobIndex::RemoveWaiting(const LoadJobPtr& job, const Ticket& ticket) {
  Remove(waiting_, KeyOf(*job, ticket, job->wanted.end_block() - 1), *job);
}

LoadJobPtr JobIndex::LoaderOf(const LoadJob& job, const Ticket& ticket) const {
  const auto place = running_at_.find(KeyOf(job, ticket, job.wanted.end_block() - 1));
  if (place == running_at_.end()) {
    return nullptr;
  }
  for (const Entry& entry : place->second) {
    if (entry.ticket.get() != &ticket && !entry.ticket->closed && Covers(*entry.job, job)) {
      return entry.job;
    }
  }
  return nullptr;
}

std::vector<JobIndex::Entry> JobIndex::WaitingFor(const LoadJob& loader,
                                                  const Ticket& owner) const {
  std::vector<Entry> entries;
  for (int32_t block = loader.wanted.first_block; block < loader.wanted.end_block(); ++block) {
    const auto place = waiting_.find(KeyOf(loader, owner, block));
    if (place == waiting_.end()) {
      continue;
    }
    std::copy_if(place->second.begin(), place->second.end(), std::back_inserter(entries),
                 [&](const Entry& entry) {
                   return entry.ticket.get() != &owner && Covers(loader, *entry.job);
                 });
  }
  return entries;
}

}  // namespace kvik::connector
