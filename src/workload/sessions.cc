// SPDX-License-Identifier: Apache-2.0
#include "workload/sessions.h"

#include <limits>
#include <string>
#include <unordered_map>

#include "base/check.h"
#include "kv/session_tracker.h"

namespace kvik::workload {

void AnnotateSessions(Trace& trace) {
  kv::SessionTracker tracker(std::numeric_limits<size_t>::max());  // forgets nothing
  std::unordered_map<int64_t, int32_t> turns;
  for (TraceRequest& request : trace.requests) {
    if (request.session < 0) {
      const kv::SessionTurn found = tracker.Arrive(request.blocks);
      request.session = static_cast<int64_t>(found.session);
      request.turn = found.turn;
    } else if (request.turn == 0) {
      request.turn = ++turns[request.session];
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
  trace.name += '/';
  trace.name += std::to_string(one_in);
}

}  // namespace kvik::workload
