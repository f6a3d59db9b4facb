// SPDX-License-Identifier: Apache-2.0
// workload/future.h: what a trace will ask for next: the knowledge that offline policies have and
// no running server can.
#pragma once

#include <cstdint>
#include <limits>
#include <unordered_map>
#include <vector>

#include "kv/block_key.h"
#include "workload/trace.h"

namespace kvik::workload {

// The key under which the replay caches a block of a trace.
kv::ContentKey KeyOf(uint64_t trace_block);

class Future {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  // `trace` must outlive the object.
  explicit Future(const Trace& trace);

  // Request `index` of the trace is the present one; never backwards.
  void SetNow(int64_t index) { now_ = index; }
  [[nodiscard]] int64_t now() const { return now_; }
  // The first request after the present one that uses this content, or kNever. `content` is the
  // digest of a key from KeyOf. Amortised O(1).
  [[nodiscard]] int64_t NextUse(uint64_t content);
  [[nodiscard]] int64_t ArrivalUs(int64_t index) const {
    return trace_.requests[static_cast<size_t>(index)].arrival_us;
  }

 private:
  struct Uses {
    std::vector<int32_t> requests;  // ascending
    size_t next = 0;                // the first that may be after now
  };
  const Trace& trace_;
  std::unordered_map<uint64_t, Uses> uses_;
  int64_t now_ = 0;
};

}  // namespace kvik::workload
