// SPDX-License-Identifier: Apache-2.0
// sched/scheduler.h: which requests run in the next step, and which of their tokens.
//
// Continuous batching. A step first takes one token of every request that has a single token left
// to compute (decodes), then prefill chunks in order of (priority, arrival): first of running
// requests, then of waiting ones it admits. A chunk takes tokens of the request's compute list and
// jumps over cached tokens, which cost no budget.
//
// Admission reserves blocks for the whole request: its tokens and `reserve_new_tokens` of those it
// may still generate (all of them by default, so that an admitted request always finishes without
// asking again). Waiting requests are admitted strictly in order; the first that does not fit
// waits, and so do those behind it.
//
// One exception: a request for whose KV the cache's policy keeps blocks pinned (an agent back from
// its tool, under "continuum") goes before others of its priority, since every moment that it waits
// the pin takes room from all. It cannot starve them: the first in order is passed over
// kMaxOvertakes times at most, so it gets one of every kMaxOvertakes + 1 admissions.
//
// Preemption takes the least important running request (worst priority, latest arrival), releases
// its blocks (sealed ones stay cached) and queues it again at its old place. It happens when
//   - a waiting request of strictly better priority does not fit and would fit without the running
//     requests of worse priority, or
//   - reservations are partial (overcommit) and a request needs one block more than there are.
// The most important request is never preempted and its whole need fits the empty pool (Add
// checks), so it finishes, and by induction every request does.
//
// KV may also come from elsewhere, if there is a BlockLoader: a new request can be held back while
// it is looked for, and a running one stands still while nothing but loaded blocks could take it
// further. Neither is in anybody's way: those held back are not in the queue, and those that stand
// still do not count against max_num_seqs.
//
// Pure: no time, no threads, no bytes. Thread-compatible.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "kv/cost_model.h"
#include "kv/kv_cache.h"
#include "kv/sequence.h"

namespace kvik::sched {

using RequestId = uint64_t;

struct SchedulerOptions {
  int32_t max_num_seqs = 32;              // running at once
  int32_t max_num_batched_tokens = 2048;  // rows of a step; >= max_num_seqs
  int32_t chunk_max = 512;                // tokens of one request's prefill in a step
  int32_t chunk_floor = 64;
  // With more decodes than this in a step, all its prefill together gets chunk_max * threshold /
  // decodes tokens, at least chunk_floor; with 1..threshold decodes it gets chunk_max; with none
  // it gets the whole budget.
  int32_t chunk_decode_threshold = 4;
  // Of the tokens a request may still generate, how many admission reserves room for. Less than
  // all = overcommit: more requests run, some may be preempted.
  int32_t reserve_new_tokens = std::numeric_limits<int32_t>::max();
  // > 0: beside decodes, prefill takes the largest chunk whose step is predicted to last no longer
  // than this (and chunk_max and the budget above allow); when decodes alone last longer, it still
  // takes kMinChunkTokens, so that every step makes progress.
  int64_t tpot_slo_us = 0;
  kv::CostModel cost = kv::CostModel::Default();  // for the prediction
};

constexpr int32_t kMinChunkTokens = 16;
constexpr int32_t kMaxOvertakes = 8;

// kInvalidInput names the option.
Result<void> ValidateSchedulerOptions(const SchedulerOptions& options);

// Prefill tokens that a step with this many decodes takes, over all requests.
int32_t PrefillBudget(const SchedulerOptions& options, int32_t num_decodes);

struct SchedRequest {
  RequestId id = 0;      // unique, ascending in order of arrival
  int32_t priority = 0;  // lower runs first
  std::vector<TokenId> prompt;
  int32_t max_new_tokens = 1;
  kv::ExtraKeys extra;
  uint64_t session = 0;  // kv::RequestFacts
  std::optional<bool> will_continue = std::nullopt;
  std::shared_ptr<const kv::Retention> retention = nullptr;
  kv::MinQuality quality = {};  // of the KV it may read
};

// Whoever brings KV from elsewhere hears at these moments of requests. Called by the scheduler,
// which must not be called back.
class BlockLoader {
 public:
  virtual ~BlockLoader() = default;
  // A new request, not admitted yet. True: it is held back until Scheduler::LetIn.
  virtual bool Added(RequestId id, kv::Sequence& sequence) = 0;
  // Just admitted: blocks of it may be loaded from now on (kv::KvCache::BeginLoad).
  virtual void Admitted(RequestId id, kv::Sequence& sequence) = 0;
  // Its blocks have been taken from it; it will be admitted again.
  virtual void Preempted(RequestId id, kv::Sequence& sequence) = 0;
};

// The part of one request in a step.
struct ScheduledRequest {
  RequestId id = 0;
  std::vector<kv::TokenRun> runs;  // ascending; one segment each
  int32_t num_tokens = 0;          // in all runs
  bool last_token = false;         // the runs end with the request's last token: sample the next
};

// Why nothing (more) was admitted.
enum class WaitReason {
  kNone,      // nobody waits
  kCapacity,  // the first waiting request needs more blocks than are available
  kSeqs,      // max_num_seqs are running
  kBudget,    // the step's token budget is used up
};
const char* WaitReasonName(WaitReason reason);  // "none", "capacity", "seqs", "budget"

struct StepPlan {
  std::vector<ScheduledRequest> requests;  // decodes first, then prefill chunks
  int32_t num_tokens = 0;
  int32_t num_decodes = 0;
  kv::StepFeatures features;         // what the cost model says of the step
  std::vector<RequestId> admitted;   // this step, resumed ones included
  std::vector<RequestId> preempted;  // this step
  WaitReason wait_reason = WaitReason::kNone;
  int32_t missing_blocks = 0;  // of kCapacity: how many too few
  [[nodiscard]] bool empty() const { return requests.empty(); }
};

// What the cache gave a request at its first admission.
struct CacheHits {
  int32_t cached_tokens = 0;
  int32_t prefix_tokens = 0;  // of which in the run from position 0
  int32_t segments = 0;       // runs of reused blocks
};

struct SchedulerStats {
  int32_t running = 0;
  int32_t waiting = 0;
  int32_t waiting_for_capacity = 0;  // the part of `waiting` that the pool holds up
  int32_t held_back = 0;             // the part of `waiting` that the loader holds back
  int64_t preemptions = 0;
  int64_t prefix_query_tokens = 0;  // prompt tokens looked up, once per request
  int64_t prefix_hit_tokens = 0;
  int64_t recomputed_tokens = 0;  // computed again after preemptions
  int64_t overtakes = 0;          // admissions out of order, for pinned KV
};

class Scheduler {
 public:
  // `cache` must outlive the scheduler. REQUIRES: ValidateSchedulerOptions succeeded.
  Scheduler(const SchedulerOptions& options, kv::KvCache& cache);
  ~Scheduler();

  // Null: none. REQUIRES: no request is there. `loader` is not owned.
  void SetLoader(BlockLoader* loader) { loader_ = loader; }

  // The longest request the pool can ever hold, in tokens.
  [[nodiscard]] int32_t max_request_tokens() const;
  // Queues a request. kInvalidInput when it can never fit the pool. REQUIRES: a new id.
  Result<void> Add(SchedRequest request);

  // A request that was held back joins the queue, at the place of its arrival. REQUIRES: a known
  // id. Does nothing for others.
  void LetIn(RequestId id);

  // Decides one step: preempts, admits, reserves. An empty plan with requests left says why in
  // wait_reason. REQUIRES: the last plan was committed, or its requests were removed.
  [[nodiscard]] StepPlan Schedule();
  // Takes blocks for the plan's tokens, evicting cached ones. Cannot fail.
  void Allocate(const StepPlan& plan);
  // The step ran: seals and publishes the blocks it filled.
  void Commit(const StepPlan& plan);

  // A sampled token. REQUIRES: running, all its tokens are computed, and max_new_tokens is not
  // reached: the caller removes a request that has ended.
  void Append(RequestId id, TokenId token);
  // The answer calls a tool, with the digest of its name or 0: kv::RequestFacts. REQUIRES: a known
  // id.
  void NoteToolCall(RequestId id, uint64_t tool = 0);
  // Removes a request in any state and gives its blocks back; false if unknown.
  bool Remove(RequestId id);

  [[nodiscard]] bool HasWork() const;
  // REQUIRES: a known id.
  [[nodiscard]] const kv::Sequence& sequence(RequestId id) const;
  [[nodiscard]] const CacheHits& cache_hits(RequestId id) const;
  [[nodiscard]] int32_t preemptions(RequestId id) const;
  [[nodiscard]] SchedulerStats stats() const;

 private:
  struct Entry;
  struct MoreImportant {
    bool operator()(const Entry* a, const Entry* b) const;
  };
  using Queue = std::set<Entry*, MoreImportant>;  // most important first

  Entry& At(RequestId id) const;
  int32_t NeedTokens(const Entry& entry) const;
  void Enqueue(Entry& entry);
  // Running requests; if they were max_num_seqs or more, only those that are not blocked.
  [[nodiscard]] int32_t NumRunnable() const;
  [[nodiscard]] bool StepIsFull(const StepPlan& plan) const {
    return static_cast<int32_t>(plan.requests.size()) >= options_.max_num_seqs;
  }
  [[nodiscard]] Entry& NextWaiting() const;
  void ReserveForRunning(StepPlan& plan);
  void MakeRoomForPriority(StepPlan& plan);
  bool FitsWithoutWorse(const Entry& head, const kv::AdmissionPlan& admission) const;
  void AddDecodes(StepPlan& plan);
  void AddPrefill(StepPlan& plan, int32_t& budget_tokens);
  void AdmitWaiting(StepPlan& plan, int32_t& budget_tokens);
  void AddChunk(StepPlan& plan, const Entry& entry, int32_t budget_tokens) const;
  int32_t FitToSlo(const StepPlan& plan, const Entry& entry, int32_t tokens) const;
  void CountHits(Entry& entry);
  void Preempt(Entry& entry, StepPlan& plan);

  SchedulerOptions options_;
  kv::KvCache& cache_;
  std::unordered_map<RequestId, std::unique_ptr<Entry>> entries_;
  Queue running_;
  Queue waiting_;
  Queue awaited_;    // of the waiting: those that KV is pinned for
  Queue held_back_;  // not waiting yet
  BlockLoader* loader_ = nullptr;
  WaitReason wait_reason_ = WaitReason::kNone;
  SchedulerStats totals_;  // the counters; gauges are filled in by stats()
};

}  // namespace kvik::sched
