// SPDX-License-Identifier: Apache-2.0
#include "workload/sessions.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "base/check.h"

namespace kvik::workload {
namespace {

constexpr size_t kTailBlocks = 3;   // of the known prefix, where the earlier request may end
constexpr size_t kLeastBlocks = 2;  // of that earlier request

class Extension {
 public:
  // The session of an earlier request that `request` extends, or a new one.
  int64_t SessionOf(const TraceRequest& request) {
    const std::vector<uint64_t>& blocks = request.blocks;
    size_t known = 0;
    while (known < blocks.size() && known_.contains(blocks[known])) {
      ++known;
    }
    int64_t session = -1;
    for (size_t back = 1; back <= std::min(known, kTailBlocks) && session < 0; ++back) {
      const auto it = ends_.find(blocks[known - back]);
      session = it == ends_.end() ? -1 : it->second;
    }
    if (session < 0) {
      session = next_++;
    }
    known_.insert(blocks.begin() + static_cast<std::ptrdiff_t>(known), blocks.end());
    if (blocks.size() >= kLeastBlocks) {
      ends_[blocks.back()] = session;
    }
    return session;
  }

 private:
  std::unordered_set<uint64_t> known_;
  std::unordered_map<uint64_t, int64_t> ends_;  // last full block to the session it belongs to
  int64_t next_ = 0;
};

}  // namespace

void AnnotateSessions(Trace& trace) {
  Extension extension;
  std::unordered_map<int64_t, int32_t> turns;
  for (TraceRequest& request : trace.requests) {
    if (request.session < 0) {
      request.session = extension.SessionOf(request);
    }
    const int32_t turn = ++turns[request.session];
    if (request.turn == 0) {
      request.turn = turn;
    }
  }
}

void SampleSessions(Trace& trace, uint32_t one_in) {
  KVIK_CHECK(one_in >= 1);
  constexpr uint32_t kKnuth = 2654435761U;  // spreads consecutive numbers over 32 bits
  std::erase_if(trace.requests, [one_in](const TraceRequest& request) {
    return static_cast<uint32_t>(request.session) * kKnuth % one_in != 0;
  });
  for (TraceRequest& request : trace.requests) {
    request.session = -1;
    request.turn = 0;
  }
  AnnotateSessions(trace);
  trace.name += "/" + std::to_string(one_in);
}

}  // namespace kvik::workload
