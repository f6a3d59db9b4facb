// SPDX-License-Identifier: Apache-2.0
// engine/engine.h: the step loop, single-threaded: schedule, allocate, execute, publish, sample.
//
// The engine owns cache, scheduler and request state and sees the outside only through an Executor
// and a Clock. What a request says never depends on what ran beside it, on the state of the cache,
// on chunking or on preemptions. EngineLoop (engine/engine_loop.h) gives it a thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "engine/executor.h"
#include "engine/kv_exchange.h"
#include "engine/request.h"
#include "engine/sealed_block_guard.h"
#include "kv/connector.h"
#include "kv/kv_cache.h"
#include "model/batch.h"
#include "model/sampler.h"
#include "sched/scheduler.h"

namespace kvik::engine {

struct EngineOptions {
  kv::CacheOptions cache;
  sched::SchedulerOptions scheduler;
  int32_t max_model_len =
      0;              // prompt and generated tokens of one request; 0 = the executor's limit
  uint64_t seed = 0;  // of requests that bring none
  // With a connector: how long a new request waits to hear what could be loaded for it, before it
  // is computed without. 0: not at all.
  int64_t max_answer_wait_us = 20'000;
  // The same for requests whose KV a peer has promised (TransferParams::peer).
  int64_t max_promised_wait_us = 20'000;
  // Checks after every step that no sealed block changed; aborts if one did. Reads all of them.
#ifdef NDEBUG
  bool verify_sealed_blocks = false;
#else
  bool verify_sealed_blocks = true;
#endif
};

// Counters since the start and gauges of now.
struct EngineStats {
  kv::CacheStats cache;
  sched::SchedulerStats scheduler;
  double kv_cache_usage = 0;  // share of blocks held by requests, [0, 1]
  int64_t steps = 0;
  int64_t step_tokens = 0;  // rows computed
  int64_t failed_steps = 0;
  // Counted when a request's first token is sampled: prompt_tokens = computed + cached + external.
  int64_t prompt_tokens = 0;
  int64_t prompt_tokens_computed = 0;
  int64_t prompt_tokens_cached = 0;
  int64_t prompt_tokens_external = 0;
  int64_t prompt_tokens_prefix = 0;  // of the cached ones, in the run from position 0
  int64_t prompt_blocks = 0;         // full ones
  int64_t prompt_blocks_cached = 0;
  int64_t prompt_blocks_external = 0;
  int64_t prompts = 0;           // as many as the above come from
  int64_t prompts_with_hit = 0;  // that found at least a block
  // What the cost model says of the prompts: computing all, and computing what was not cached.
  double no_cache_cost_us = 0;
  double miss_cost_us = 0;
  int64_t generation_tokens = 0;
  int64_t finished_stop = 0;
  int64_t finished_length = 0;
  int64_t finished_cancelled = 0;
  int64_t finished_error = 0;
  int64_t rejected = 0;  // by Submit
  KvExchangeStats exchange;
  std::vector<kv::PolicyReading> policy;
};

// One step, for histograms and logs.
struct StepReport {
  int32_t num_tokens = 0;  // rows
  int32_t num_requests = 0;
  int32_t num_decodes = 0;
  int32_t num_segments = 0;
  int64_t duration_us = 0;
  std::vector<kv::ResidencySample> residency;  // seen since the report before
  std::string idle_reason;                     // why an empty step was empty; empty otherwise
  // Of an empty step: after so long the next one may not be empty, even if nothing happens to the
  // engine meanwhile. kv::kUntilEvent: it would be.
  int64_t idle_us = kv::kUntilEvent;
};

class Engine {
 public:
  // `executor` and `clock` must outlive the engine. kInvalidInput names the option that does not
  // fit. The cache's geometry is the executor's, whatever the options say.
  static Result<std::unique_ptr<Engine>> Create(const EngineOptions& options, Executor& executor,
                                                const Clock& clock);
  // Disconnects.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // From now on KV may come from and go to elsewhere. `wake` is called from any thread when there
  // are events to take, maybe long before Disconnect; may be empty. `connector` must outlive the
  // engine. kInvalidInput: there is no prefix cache to bring KV into. REQUIRES: not connected, and
  // no request was submitted yet.
  Result<void> Connect(kv::Connector& connector, std::function<void()> wake);
  // Ends what the connector does with the engine's blocks. REQUIRES: no request is left.
  void Disconnect();

  // Prompt and generated tokens of one request: max_model_len, or less if the pool is smaller.
  // max_new_tokens is clipped to what is left of it. Thread-safe.
  [[nodiscard]] int32_t max_request_tokens() const;
  // Everything that can be wrong with a request: empty or too long prompt (the message names its
  // length, the model's limit and the pool), token ids outside the vocabulary, sampling
  // parameters. kInvalidInput. Thread-safe.
  [[nodiscard]] Result<void> Validate(const Request& request) const;

  // Queues a request; `sink` is called from Step and Abort until the output with `finish`, and must
  // not call the engine. An invalid request is rejected at once and its sink never called.
  Result<RequestId> Submit(Request request, OutputSink sink);
  // Same, with an id from ReserveId: EngineLoop tells its caller the id before the engine thread
  // sees the request.
  Result<void> Submit(RequestId id, Request request, OutputSink sink);
  // Thread-safe.
  [[nodiscard]] RequestId ReserveId();
  // Ends a request in any state with kCancelled; false when it is unknown or has ended.
  bool Abort(RequestId id);
  void AbortAll();

  // What the cache's policy hears of a request. REQUIRES: it has not ended.
  [[nodiscard]] const kv::RequestFacts& facts(RequestId id) const;

  [[nodiscard]] bool HasWork() const;
  // Runs one step. Does nothing but report a reason when nothing can run. An executor's error ends
  // the requests of the step with kError and leaves all others untouched.
  StepReport Step();
  // Takes the connector's events while there is no work, as Step does otherwise.
  void TakeEvents();

  // What came to be cached and what went (kv::CacheOptions::announce) since the last call.
  [[nodiscard]] std::vector<kv::BlockEvent> TakeBlockEvents() { return cache_->TakeBlockEvents(); }

  // What the executor does while there is no work: Executor::DoIdleWork.
  bool DoIdleWork() { return executor_.DoIdleWork(); }

  [[nodiscard]] EngineStats stats() const;
  // For tests, measurements and /reset_prefix_cache. Between steps only.
  [[nodiscard]] kv::KvCache& cache();

 private:
  struct Active;
  Engine(const EngineOptions& options, Executor& executor, const Clock& clock,
         std::unique_ptr<kv::KvCache> cache);

  void NoteScheduled(const sched::StepPlan& plan);
  void NoteIdle(const sched::StepPlan& plan, StepReport& report) const;
  void OfferSealed(const sched::StepPlan& plan);
  [[nodiscard]] double SavedUs(const kv::Sequence& sequence) const;
  void ShareControlTime(const sched::StepPlan& plan, int64_t control_us);
  void BuildBatch(const sched::StepPlan& plan);
  void SampleTokens(const sched::StepPlan& plan, const model::LogitsView& logits);
  void SampleOne(Active& active, std::span<const float> logits);
  void CountPrompt(const Active& active);
  void FailStep(const sched::StepPlan& plan, const Error& error);
  std::shared_ptr<const kv::TransferReport> CloseTicket(const Active& active,
                                                        kv::CloseReason reason);
  void Finish(Active& active, FinishReason reason, std::optional<Error> error,
              std::vector<TokenOutput> tokens);
  void CountStep(const sched::StepPlan& plan, StepReport& report);

  EngineOptions options_;
  ExecutorLimits limits_;
  Executor& executor_;
  const Clock& clock_;
  std::unique_ptr<kv::KvCache> cache_;
  sched::Scheduler scheduler_;
  std::unique_ptr<KvExchange> exchange_;  // null: not connected
  model::Sampler sampler_;
  SealedBlockGuard guard_;
  model::StepBatch batch_;  // reused
  std::unordered_map<RequestId, std::unique_ptr<Active>> active_;
  std::atomic<RequestId> last_id_{0};
  EngineStats totals_;  // the counters; gauges are filled in by stats()
};

}  // namespace kvik::engine
