// SPDX-License-Identifier: Apache-2.0
// workload/replay.h: a trace driven through the cache, to count what a policy saves.
//
// The cache is the engine's own (kv::KvCache); only the computing is left out. Requests come in
// order of arrival and take no time, so a request pins its own blocks and no other's. The first
// part of the trace fills the cache and is not counted.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "kv/eviction_policy.h"
#include "kv/prefix_index.h"
#include "workload/load_report.h"
#include "workload/trace.h"

namespace kvik::workload {

// What one request found.
struct RequestOutcome {
  size_t request = 0;     // index in the trace
  bool measured = false;  // false while the cache warms up
  std::span<const kv::ResidentRun> hits;
};

struct ReplayOptions {
  // Also an offline one; num_blocks and block size are set by Replay. With a tier everything that
  // was cached once can be fetched, and costs that where it is less.
  kv::PolicyOptions policy;
  int32_t cache_blocks = 0;  // for full blocks; one more holds the tail, which is never cached
  std::string policy_state;  // what the policy starts from; empty: it knows nothing
  double warmup_share = 0.1;
  // Requests wait for each other: one server takes them in order of arrival and needs for each what
  // the cost model says of its prefill (answers cost nothing); blocks are pinned so long. Turns
  // with a gap arrive that long after the answer before. As in the scheduler, a request that the
  // policy keeps KV pinned for goes before others, each of whom it may pass over a few times.
  bool queue = false;
  // >= 0: requests say whether their session goes on, and are right with this chance.
  double hint_accuracy = -1;
  // Called after every request; may be empty.
  std::function<void(const RequestOutcome&)> observe;
  // Called with the policy at the end; may be empty.
  std::function<void(const kv::EvictionPolicy&)> at_end;
  // Stands between the cache and the policy, to watch or to time it; may be empty.
  std::function<std::unique_ptr<kv::EvictionPolicy>(std::unique_ptr<kv::EvictionPolicy>)> wrap;
};

// What one policy did with one trace and one size. Percentages are of the measured requests.
struct ReplayCell {
  std::string trace;
  std::string policy;
  int32_t cache_blocks = 0;
  int64_t requests = 0;
  double block_hit_pct = 0;    // cached blocks used, of full blocks
  double prefix_hit_pct = 0;   // of which in the run from position 0
  double request_hit_pct = 0;  // requests that used at least one
  double miss_cost_pct = 0;    // what had to be computed, of computing everything, in time
  double segments_mean = 0;    // cached runs of a request
  double segments_p99 = 0;
  double us_per_request = 0;  // of the cache's own work
  int64_t evictions = 0;
  bool has_ttft = false;    // of a queue:
  Distribution ttft_ms;     // from arrival to the end of prefill
  bool has_job = false;     // of a queue, where requests call tools:
  Distribution job_s;       // of a session, from its first arrival to the end of its last prefill
  int32_t repeats = 1;      // traces of which this is the mean
  bool offline = false;     // the policy knew the trace beforehand; set by who set it up
  bool only_bound = false;  // of "bound": only miss_cost_pct means something
};

// The mean of cells of one policy and size, on traces of one kind. REQUIRES: not empty.
ReplayCell MeanOf(std::span<const ReplayCell> cells);

// `clock` measures us_per_request only. kInvalidInput as kv::KvCache::Create and
// kv::MakeEvictionPolicy; kUnsupported for an offline policy where the queue decides the order.
// REQUIRES: sessions annotated, if the policy is to know of them.
Result<ReplayCell> Replay(const Trace& trace, const ReplayOptions& options, const Clock& clock);

}  // namespace kvik::workload
