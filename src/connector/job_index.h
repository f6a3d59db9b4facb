// SPDX-License-Identifier: Apache-2.0
// connector/job_index.h: which load brings the blocks that another request lacks, found by the keys
// of the blocks, however many requests there are.
//
// Plain data under the connector's lock.
#pragma once

#include <cstddef>
#include <unordered_map>
#include <vector>

#include "connector/load_job.h"
#include "kv/block_key.h"

namespace kvik::connector {

class JobIndex {
 public:
  struct Entry {
    LoadJobPtr job;
    TicketPtr ticket;  // whose it is
  };

  // Jobs that have been asked for, of closed tickets too: O(blocks that are wanted).
  // REQUIRES: to add: it is not in; to remove: it is.
  void AddRunning(const LoadJobPtr& job, const TicketPtr& ticket);
  void RemoveRunning(const LoadJobPtr& job);
  [[nodiscard]] std::vector<LoadJobPtr> Running() const;

  // Jobs that their tickets will ask for later: O(1). As above.
  void AddWaiting(const LoadJobPtr& job, const TicketPtr& ticket);
  void RemoveWaiting(const LoadJobPtr& job, const Ticket& ticket);
  void ClearWaiting() { waiting_.clear(); }

  // A running job of another open ticket that brings all that `job` wants in the same profile, and
  // that others may still join; null: none.
  [[nodiscard]] LoadJobPtr LoaderOf(const LoadJob& job, const Ticket& ticket) const;
  // The waiting jobs of other tickets to which the running `loader` of `owner` brings all they
  // want; those with earlier blocks first, of equals who came first.
  [[nodiscard]] std::vector<Entry> WaitingFor(const LoadJob& loader, const Ticket& owner) const;

 private:
  // The hash of a block implies those before it, so a job is known by the last one it wants.
  struct Key {
    kv::ContentKey block;
    const CodecProfile* profile = nullptr;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };
  using Places = std::unordered_map<Key, std::vector<Entry>, KeyHash>;

  static Key KeyOf(const LoadJob& job, const Ticket& ticket, int32_t block);
  static void Remove(Places& places, const Key& key, const LoadJob& job);

  std::unordered_map<LoadJobPtr, TicketPtr> running_;
  Places running_at_;  // by every block that they bring
  Places waiting_;     // by the last block that they want
};

}  // namespace kvik::connector
