// SPDX-License-Identifier: Apache-2.0
// kv/request_facts.h: what an eviction policy may know of the request that uses blocks. A policy
// never reads content.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/types.h"
#include "kv/retention.h"

namespace kvik::kv {

struct RequestFacts {
  uint64_t request = 0;  // unique while the process runs
  uint64_t session = 0;  // 0: unknown
  int32_t turn = 0;      // of the session, from 1; 0: unknown
  int32_t prompt_tokens = 0;
  int32_t output_tokens = 0;            // so far; final when the request releases its blocks
  bool tool_call = false;               // its answer ends in a call of a tool: known at release
  uint64_t tool = 0;                    // digest of the tool's name; 0: none, or not known
  std::optional<bool> will_continue{};  // the client's word whether the session goes on
  std::shared_ptr<const Retention> retention{};  // the client's word on ranges; may be null
};

// One use of blocks by a request.
struct Access {
  int64_t now_us = 0;
  RequestFacts request{};
  // When the request lets go of its blocks: all of them, by position; kNoBlock where there is none.
  std::span<const BlockId> table{};
};

}  // namespace kvik::kv
