// SPDX-License-Identifier: Apache-2.0
// connector/counters.h: what KV moved, and what became of it. Monotonic since the start, but for
// those that say "now".
#pragma once

#include <cstdint>

namespace kvik::connector {

struct ConnectorCounters {
  int64_t lookups = 0;          // requests that were looked up
  int64_t lookup_failures = 0;  // sources that could not answer, or not in time
  int64_t queried_blocks = 0;   // that could have been loaded
  int64_t found_blocks = 0;     // of those, in objects good enough for the request
  int64_t claimed_blocks = 0;
  int64_t arrived_blocks = 0;
  int64_t given_up_blocks = 0;  // computing became faster, or the request left
  int64_t late_blocks = 0;      // the deadline passed
  int64_t failed_blocks = 0;    // lost, damaged, refused
  int64_t loads = 0;            // objects that were asked for
  int64_t failed_loads = 0;
  int64_t shared_loads = 0;     // not asked for, because another request was loading the same
  int64_t shared_blocks = 0;    // of arrived_blocks: copied from another request's
  int64_t damaged_objects = 0;  // that did not decode, or not to what was asked for
  int64_t refused_quality = 0;  // that came worse than they were announced
  uint64_t loaded_wire_bytes = 0;
  uint64_t loaded_raw_bytes = 0;  // of the same KV in the pool
  int64_t load_us = 0;            // summed over loads: from asked for to arrived
  int64_t decode_us = 0;          // of all threads
  int64_t encode_us = 0;
  // Of requests for which KV was loaded, as their reports say.
  int64_t predicted_us = 0;
  int64_t observed_us = 0;
  int64_t remote_prefill_us = 0;
  int64_t remote_encode_us = 0;

  int64_t offered_blocks = 0;
  int64_t taken_blocks = 0;
  int64_t released_blocks = 0;
  int64_t stored_objects = 0;
  int64_t store_failures = 0;      // objects that no target took
  int64_t dropped_stores = 0;      // given up for room, or because too much was waiting
  int64_t kept_originals = 0;      // approximated objects that came and were stored as they came
  int64_t prefetched_objects = 0;  // brought nearer while their requests waited
  uint64_t stored_wire_bytes = 0;
  uint64_t stored_raw_bytes = 0;

  int64_t served_objects = 0;  // of the live cache, to peers
  int64_t served_failures = 0;
  uint64_t served_wire_bytes = 0;
  int64_t expired_leases = 0;  // blocks kept for a peer that did not come for them in time

  int64_t open_tickets = 0;    // now
  int64_t loading_blocks = 0;  // now
  int64_t held_blocks = 0;     // now: references the engine holds for the connector
  double compute_pace = 1;     // now: how long computing takes, over what the cost model says
};

}  // namespace kvik::connector
