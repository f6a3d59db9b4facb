// SPDX-License-Identifier: Apache-2.0
#include "kv/return_tracker.h"

#include <algorithm>

#include "base/check.h"

namespace kvik::kv {

ReturnTracker::ReturnTracker(int32_t num_blocks)
    : marks_(static_cast<size_t>(num_blocks)), ghosts_(kMarkedBlocks * kMaxDepartures) {}

void ReturnTracker::Depart(uint64_t kind, std::span<const BlockId> blocks, const Access& access) {
  KVIK_CHECK(!blocks.empty());
  const uint64_t id = ++last_departure_;
  if (id > kMaxDepartures) {
    End(id - kMaxDepartures);
  }
  const uint64_t session = access.request.session;
  departures_[id] = {kind, session, access.now_us, blocks.front()};
  if (session != 0) {
    of_session_[session] = id;
  }
  for (const BlockId block : blocks.first(std::min(kMarkedBlocks, blocks.size()))) {
    MarkOf(block).departure = id;
  }
}

void ReturnTracker::End(uint64_t id) {
  const auto departure = departures_.find(id);
  if (departure == departures_.end()) {
    return;
  }
  const auto session = of_session_.find(departure->second.session);
  if (session != of_session_.end() && session->second == id) {
    of_session_.erase(session);
  }
  departures_.erase(departure);
}

void ReturnTracker::Return(uint64_t id, int64_t now_us) {
  const auto departure = departures_.find(id);
  if (departure != departures_.end()) {
    durations_.Add(departure->second.kind, now_us - departure->second.time_us);
    End(id);
  }
}

void ReturnTracker::Hit(std::span<const BlockId> blocks, const Access& access) {
  if (const auto found = of_session_.find(access.request.session); found != of_session_.end()) {
    Return(found->second, access.now_us);
  }
  for (const BlockId block : blocks) {
    if (MarkOf(block).departure != kNobody) {
      Return(MarkOf(block).departure, access.now_us);
      MarkOf(block).departure = kNobody;
    }
  }
}

void ReturnTracker::Missed(std::span<const uint64_t> contents, const Access& access) {
  if (ghosts_.size() == 0) {
    return;
  }
  for (const uint64_t content : contents) {
    if (const auto departure = ghosts_.Take(content)) {
      Return(*departure, access.now_us);
    }
  }
}

void ReturnTracker::Evicted(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    Mark& mark = MarkOf(block);
    if (mark.departure != kNobody && departures_.contains(mark.departure)) {
      ghosts_.Add(mark.content, mark.departure);
    }
    mark.departure = kNobody;
  }
}

BlockId ReturnTracker::AwaitedBlock(std::span<const BlockId> hits, uint64_t session) const {
  const auto of_departure = [&](uint64_t id) {
    const auto departure = departures_.find(id);
    return departure == departures_.end() || MarkOf(departure->second.deepest).departure != id
               ? kNoBlock
               : departure->second.deepest;
  };
  if (const auto found = of_session_.find(session); found != of_session_.end()) {
    if (const BlockId block = of_departure(found->second); block != kNoBlock) {
      return block;
    }
  }
  for (auto hit = hits.rbegin(); hit != hits.rend(); ++hit) {
    if (*hit != kNoBlock && MarkOf(*hit).departure != kNobody) {
      if (const BlockId block = of_departure(MarkOf(*hit).departure); block != kNoBlock) {
        return block;
      }
    }
  }
  return kNoBlock;
}

}  // namespace kvik::kv
