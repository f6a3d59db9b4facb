// SPDX-License-Identifier: Apache-2.0
#include "workload/long_context_trace.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/check.h"

namespace kvik::workload {

Trace TraceOf(const LongContextLoad& load, int32_t block_size_tokens) {
  KVIK_CHECK(block_size_tokens >= 1);
  Trace trace;
  trace.block_size_tokens = block_size_tokens;
  for (size_t s = 0; s < load.sessions.size(); ++s) {
    const LongContextSession& session = load.sessions[s];
    int64_t at_us = std::llround(session.start_s * 1e6);
    for (size_t t = 0; t < session.turns.size(); ++t) {
      const LongContextTurn& turn = session.turns[t];
      TraceRequest request;
      if (t > 0) {
        request.gap_us = std::llround(turn.gap_s * 1e6);
        at_us += request.gap_us;
      }
      request.arrival_us = at_us;
      request.input_tokens = turn.prompt_tokens;
      request.output_tokens = turn.output_tokens;
      request.session = static_cast<int64_t>(s);
      request.turn = static_cast<int32_t>(t) + 1;
      for (int32_t b = 0; b < turn.prompt_tokens / block_size_tokens; ++b) {
        const bool is_shared = (b + 1) * block_size_tokens <= load.shared_tokens;
        const uint64_t owner = is_shared ? 0 : s + 1;
        request.blocks.push_back(owner << 32 | static_cast<uint32_t>(b));
      }
      trace.requests.push_back(std::move(request));
    }
  }
  std::stable_sort(
      trace.requests.begin(), trace.requests.end(),
      [](const TraceRequest& a, const TraceRequest& b) { return a.arrival_us < b.arrival_us; });
  return trace;
}

}  // namespace kvik::workload
