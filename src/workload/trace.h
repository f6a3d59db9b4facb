// SPDX-License-Identifier: Apache-2.0
// workload/trace.h: a load as the cache sees it: when requests came, how long they were, and which
// blocks of content they began with. No text, no tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvik::workload {

struct TraceRequest {
  int64_t arrival_us = 0;
  int32_t input_tokens = 0;   // >= 0
  int32_t output_tokens = 0;  // >= 0
  // Content of each full block of the input, which names its whole prefix: equal ids at any place
  // mean equal tokens from position 0. Exactly input_tokens / block_size_tokens of them.
  std::vector<uint64_t> blocks;
  int64_t session = -1;  // -1: unknown
  int32_t turn = 0;      // of the session, from 1; 0: unknown
  // >= 0: the arrival is this long after the answer to the session's turn before. arrival_us is
  // right when answers take no time.
  int64_t gap_us = -1;
  bool tool_call = false;  // the answer ends in a call of a tool
  uint64_t tool = 0;       // digest of its name; 0: none, or not known
};

struct Trace {
  std::string name;
  int32_t block_size_tokens = 512;
  std::vector<TraceRequest> requests;  // ascending by arrival_us
};

}  // namespace kvik::workload
