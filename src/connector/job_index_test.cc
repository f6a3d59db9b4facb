// SPDX-License-Identifier: Apache-2.0
#include "connector/job_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "connector/testing/toy_engine.h"

namespace kvik::connector {
namespace {

using ::testing::IsEmpty;
using ::testing::IsNull;
using testing::ToyKeys;

TicketPtr TicketOf(const std::vector<uint64_t>& choices) {
  auto ticket = std::make_shared<Ticket>();
  ticket->facts.keys = ToyKeys(choices);
  return ticket;
}

LoadJobPtr JobOf(const kv::BlockRange& wanted, const CodecProfile& profile) {
  auto job = std::make_shared<LoadJob>();
  job->wanted = job->what.wanted = job->what.object = wanted;
  job->what.profile = &profile;
  return job;
}

TEST(JobIndex, FindsALoadThatBringsAllThatIsWanted) {
  const CodecProfile profile;
  const CodecProfile another;
  const TicketPtr loads = TicketOf({1, 2, 3, 4, 5, 6, 7, 8});
  const TicketPtr lacks = TicketOf({1, 2, 3, 4, 5, 9});
  JobIndex index;
  const LoadJobPtr running = JobOf({2, 4}, profile);  // blocks 2 to 5
  index.AddRunning(running, loads);
  EXPECT_EQ(index.LoaderOf(*JobOf({2, 3}, profile), *lacks), running);
  EXPECT_EQ(index.LoaderOf(*JobOf({4, 1}, profile), *lacks), running);
  EXPECT_THAT(index.LoaderOf(*JobOf({1, 3}, profile), *lacks), IsNull()) << "not its first block";
  EXPECT_THAT(index.LoaderOf(*JobOf({2, 4}, profile), *lacks), IsNull()) << "another last block";
  EXPECT_THAT(index.LoaderOf(*JobOf({2, 3}, another), *lacks), IsNull()) << "another profile";
  EXPECT_THAT(index.LoaderOf(*JobOf({2, 3}, profile), *loads), IsNull()) << "its own";
  running->copying = true;
  EXPECT_THAT(index.LoaderOf(*JobOf({2, 3}, profile), *lacks), IsNull()) << "too late to join";
  running->copying = false;
  loads->closed = true;
  EXPECT_THAT(index.LoaderOf(*JobOf({2, 3}, profile), *lacks), IsNull()) << "it will be cancelled";
  loads->closed = false;
  index.RemoveRunning(running);
  EXPECT_THAT(index.LoaderOf(*JobOf({2, 3}, profile), *lacks), IsNull()) << "it is over";
}

TEST(JobIndex, KeepsNoTicketAlive) {
  const CodecProfile profile;
  TicketPtr ticket = TicketOf({1, 2, 3, 4});
  JobIndex index;
  const LoadJobPtr running = JobOf({0, 2}, profile);
  const LoadJobPtr waiting = JobOf({2, 2}, profile);
  index.AddRunning(running, ticket);
  index.AddWaiting(waiting, ticket);
  index.RemoveWaiting(waiting, *ticket);
  index.RemoveRunning(running);
  EXPECT_EQ(ticket.use_count(), 1);
  index.AddWaiting(waiting, ticket);
  index.ClearWaiting();
  EXPECT_EQ(ticket.use_count(), 1);
}

// Jobs come, wait, run, are copied, end and are cancelled in any order: the index finds what
// looking at every one of them finds.
class NaiveIndex {
 public:
  static bool Brings(const LoadJob& running, const Ticket& owner, const LoadJob& job,
                     const Ticket& ticket) {
    if (running.copying || running.what.profile != job.what.profile || &owner == &ticket) {
      return false;
    }
    for (int32_t block = job.wanted.first_block; block < job.wanted.end_block(); ++block) {
      const auto at = static_cast<size_t>(block);
      if (block < running.wanted.first_block || block >= running.wanted.end_block() ||
          !(owner.facts.keys[at] == ticket.facts.keys[at])) {
        return false;
      }
    }
    return true;
  }
  std::vector<JobIndex::Entry> running;
  std::vector<JobIndex::Entry> waiting;
};

TEST(JobIndex, FindsWhatAScanFinds) {
  const uint64_t seed = 5;
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Rng rng(seed);
  const std::vector<CodecProfile> profiles(2);
  int found = 0;
  int found_waiting = 0;
  for (int round = 0; round < 30; ++round) {
    JobIndex index;
    NaiveIndex naive;
    std::vector<TicketPtr> tickets;
    for (int i = 0; i < 8; ++i) {
      // Prompts that share beginnings of some length.
      std::vector<uint64_t> choices(16);
      const uint64_t shared = rng.Below(17);
      for (uint64_t block = 0; block < 16; ++block) {
        choices[block] = block < shared ? block : 100 * static_cast<uint64_t>(i + 1) + block;
      }
      tickets.push_back(TicketOf(choices));
    }
    const auto take = [&](std::vector<JobIndex::Entry>& from) {
      const size_t at = rng.Below(from.size());
      JobIndex::Entry entry = from[at];
      from.erase(from.begin() + static_cast<ptrdiff_t>(at));
      return entry;
    };
    for (int step = 0; step < 300; ++step) {
      const auto first = static_cast<int32_t>(4 * rng.Below(4));
      const LoadJobPtr job =
          JobOf({first, static_cast<int32_t>(rng.Range(1, 16 - first))}, profiles[rng.Below(2)]);
      const TicketPtr& ticket = tickets[rng.Below(tickets.size())];
      switch (rng.Below(6)) {
        case 0:
          index.AddWaiting(job, ticket);
          naive.waiting.push_back({job, ticket});
          break;
        case 1:
          index.AddRunning(job, ticket);
          naive.running.push_back({job, ticket});
          break;
        case 2:
          if (!naive.waiting.empty()) {  // it is asked for
            const JobIndex::Entry entry = take(naive.waiting);
            index.RemoveWaiting(entry.job, *entry.ticket);
            index.AddRunning(entry.job, entry.ticket);
            naive.running.push_back(entry);
          }
          break;
        case 3:
          if (!naive.running.empty()) {  // it ends or fails, and may be tried again
            const JobIndex::Entry entry = take(naive.running);
            index.RemoveRunning(entry.job);
            if (rng.Below(2) == 0) {
              entry.job->copying = false;
              index.AddWaiting(entry.job, entry.ticket);
              naive.waiting.push_back(entry);
            }
          }
          break;
        case 4:
          if (!naive.running.empty()) {
            naive.running[rng.Below(naive.running.size())].job->copying = true;
          }
          break;
        default:
          ticket->closed = rng.Below(4) == 0;
          break;
      }

      const LoadJobPtr loader = index.LoaderOf(*job, *ticket);
      const bool any = std::any_of(naive.running.begin(), naive.running.end(), [&](const auto& e) {
        return !e.ticket->closed && NaiveIndex::Brings(*e.job, *e.ticket, *job, *ticket);
      });
      ASSERT_EQ(loader != nullptr, any) << "round " << round << " step " << step;
      if (loader != nullptr) {
        ++found;
        const auto entry = std::find_if(naive.running.begin(), naive.running.end(),
                                        [&](const auto& e) { return e.job == loader; });
        ASSERT_NE(entry, naive.running.end()) << "it runs no more";
        ASSERT_TRUE(!entry->ticket->closed &&
                    NaiveIndex::Brings(*entry->job, *entry->ticket, *job, *ticket));
      }
      std::vector<LoadJobPtr> expected;
      for (const auto& entry : naive.waiting) {
        if (NaiveIndex::Brings(*job, *ticket, *entry.job, *entry.ticket)) {
          expected.push_back(entry.job);
        }
      }
      std::vector<LoadJobPtr> waiting;
      for (const JobIndex::Entry& entry : index.WaitingFor(*job, *ticket)) {
        waiting.push_back(entry.job);
      }
      found_waiting += static_cast<int>(waiting.size());
      ASSERT_THAT(waiting, ::testing::UnorderedElementsAreArray(expected))
          << "round " << round << " step " << step;
      ASSERT_EQ(index.Running().size(), naive.running.size());
    }
    for (const auto& entry : naive.running) {
      index.RemoveRunning(entry.job);
    }
    for (const auto& entry : naive.waiting) {
      index.RemoveWaiting(entry.job, *entry.ticket);
    }
    EXPECT_THAT(index.Running(), IsEmpty());
  }
  EXPECT_GT(found, 100);
  EXPECT_GT(found_waiting, 100);
}

}  // namespace
}  // namespace kvik::connector
