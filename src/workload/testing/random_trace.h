// SPDX-License-Identifier: Apache-2.0
// workload/testing/random_trace.h: small traces with all that makes them hard: shared heads,
// sessions that return, branches, single shots.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "workload/sessions.h"
#include "workload/trace.h"

namespace kvik::workload {

inline Trace RandomTrace(uint64_t seed, int32_t num_requests) {
  Rng rng(seed);
  Trace trace;
  trace.name = "random";
  trace.block_size_tokens = 16;
  uint64_t next_block = 1000;
  int64_t now_us = 0;
  std::vector<std::vector<uint64_t>> earlier;
  for (int32_t i = 0; i < num_requests; ++i) {
    TraceRequest request;
    now_us += rng.Range(0, 30000000);
    if (!earlier.empty() && rng.Below(10) < 7) {
      const size_t recent = std::min<size_t>(earlier.size(), 12);
      request.blocks = earlier[earlier.size() - 1 - rng.Below(recent)];
      if (rng.Below(4) == 0) {
        request.blocks.resize(rng.Below(request.blocks.size() + 1));
      }
    } else {
      request.blocks.resize(rng.Below(3));
      for (size_t b = 0; b < request.blocks.size(); ++b) {
        request.blocks[b] = b;  // everybody's head
      }
    }
    for (int64_t more = rng.Range(0, 5); more > 0 && request.blocks.size() < 20; --more) {
      request.blocks.push_back(next_block++);
    }
    request.arrival_us = now_us;
    request.input_tokens =
        static_cast<int32_t>(request.blocks.size()) * 16 + static_cast<int32_t>(rng.Below(16));
    request.output_tokens = static_cast<int32_t>(rng.Below(200));
    earlier.push_back(request.blocks);
    trace.requests.push_back(std::move(request));
  }
  AnnotateSessions(trace);
  return trace;
}

}  // namespace kvik::workload
