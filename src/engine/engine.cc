// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/planted_defect.h"
#include "base/rng.h"

namespace kvik::engine {

// A request from Submit to its last output.
struct Engine::Active {
  Active(RequestId request_id, Request r, OutputSink s)
      : id(request_id),
        request(std::move(r)),
        sink(std::move(s)),
        penalties(request.sampling, request.prompt) {}

  RequestId id;
  Request request;  // without the prompt, which the scheduler's sequence holds
  OutputSink sink;
  model::PenaltyState penalties;
  uint64_t seed = 0;
  Usage usage;
  Timing timing;
  double saved_us = 0;     // of computing the prompt, by what was cached at first
  int32_t call_begin = 0;  // generated tokens up to the first marker of a tool call; 0: none

  [[nodiscard]] bool StopsAt(TokenId token) const {
    const auto& stops = request.stop_token_ids;
    return !request.ignore_stop_tokens && usage.completion_tokens >= request.min_new_tokens &&
           std::find(stops.begin(), stops.end(), token) != stops.end();
  }
  // Whether `token`, generated after `tokens`, completes a marker of tool calls.
  [[nodiscard]] bool CallsTool(std::span<const TokenId> tokens, TokenId token) const {
    if (request.tool_call_markers == nullptr) {
      return false;
    }
    const auto completes = [&](const std::vector<TokenId>& marker) {
      const size_t before = marker.size() - 1;  // of which all must be generated, too
      return !marker.empty() && marker.back() == token &&
             static_cast<size_t>(usage.completion_tokens) >= before &&
             std::equal(marker.begin(), marker.end() - 1,
                        tokens.end() - static_cast<std::ptrdiff_t>(before));
    };
    return std::any_of(request.tool_call_markers->begin(), request.tool_call_markers->end(),
                       completes);
  }
  // What tool_of_call says. `tokens`: prompt and answer, with a marker.
  [[nodiscard]] uint64_t ToolOf(std::span<const TokenId> tokens) const {
    constexpr size_t kTokensOfName = 64;
    const auto begin = static_cast<size_t>(usage.prompt_tokens + call_begin);
    if (!request.tool_of_call || begin >= tokens.size()) {
      return 0;
    }
    return request.tool_of_call(
        tokens.subspan(begin, std::min(kTokensOfName, tokens.size() - begin)));
  }
  // Tokens that must not be sampled next.
  [[nodiscard]] std::span<const TokenId> Banned() const {
    const bool early = usage.completion_tokens < request.min_new_tokens;
    return early && !request.ignore_stop_tokens ? std::span(request.stop_token_ids)
                                                : std::span<const TokenId>();
  }
};

Result<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options, Executor& executor,
                                               const Clock& clock) {
  EngineOptions filled = options;
  const ExecutorLimits limits = executor.limits();
  KVIK_TRY(sched::ValidateSchedulerOptions(options.scheduler));
  if (options.scheduler.max_num_batched_tokens > limits.max_batch_rows) {
    return Err(ErrorCode::kInvalidInput,
               "max_num_batched_tokens is %d, but the model was loaded for %d rows a step",
               options.scheduler.max_num_batched_tokens, limits.max_batch_rows);
  }
  if (options.scheduler.max_num_seqs > limits.max_logit_rows) {
    return Err(ErrorCode::kInvalidInput,
               "max_num_seqs is %d, but the model was loaded for %d rows of logits a step",
               options.scheduler.max_num_seqs, limits.max_logit_rows);
  }
  if (options.max_model_len < 0 || options.max_model_len > limits.max_context_tokens) {
    return Err(ErrorCode::kInvalidInput, "max_model_len is %d, but the model's context is %d",
               options.max_model_len, limits.max_context_tokens);
  }
  if (options.max_model_len == 0) {
    filled.max_model_len = limits.max_context_tokens;
  }
  filled.cache.geometry = executor.kv_geometry();
  KVIK_ASSIGN(auto cache, kv::KvCache::Create(filled.cache));
  return std::unique_ptr<Engine>(new Engine(filled, executor, clock, std::move(cache)));
}

Engine::Engine(const EngineOptions& options, Executor& executor, const Clock& clock,
               std::unique_ptr<kv::KvCache> cache)
    : options_(options),
      limits_(executor.limits()),
      executor_(executor),
      clock_(clock),
      cache_(std::move(cache)),
      scheduler_(options.scheduler, *cache_),
      sampler_(limits_.vocab_size),
      guard_(options.verify_sealed_blocks) {}

Engine::~Engine() {
  if (exchange_ != nullptr) {
    for (const auto& [id, active] : active_) {
      (void)CloseTicket(*active, kv::CloseReason::kAborted);
    }
  }
  Disconnect();
}

Result<void> Engine::Connect(kv::Connector& connector, std::function<void()> wake) {
  KVIK_CHECK(exchange_ == nullptr && active_.empty());
  if (!options_.cache.prefix_caching) {
    return Err(ErrorCode::kInvalidInput,
               "KV from elsewhere is found by its content: prefix caching must be on");
  }
  const kv::ConnectorHost host{executor_.arena(),
                               executor_.kv_geometry(),
                               options_.cache.num_blocks,
                               options_.cache.block_size_tokens,
                               kv::NumericsTag::FromDescription(options_.cache.numerics),
                               std::move(wake)};
  exchange_ = std::make_unique<KvExchange>(
      connector, host, *cache_, clock_,
      KvExchange::Options{options_.max_answer_wait_us, options_.max_promised_wait_us,
                          [this](std::span<const BlockId> blocks) {
                            executor_.Lend(blocks);
                            for (const BlockId block : blocks) {
                              guard_.Forget(block);
                            }
                          }});
  scheduler_.SetLoader(exchange_.get());
  return {};
}

void Engine::Disconnect() {
  if (exchange_ == nullptr) {
    return;
  }
  scheduler_.SetLoader(nullptr);
  totals_.exchange = exchange_->stats();
  totals_.exchange.loading = 0;
  totals_.exchange.held = 0;
  exchange_.reset();
}

int32_t Engine::max_request_tokens() const {
  return std::min(options_.max_model_len, scheduler_.max_request_tokens());
}

Result<void> Engine::Validate(const Request& request) const {
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (prompt_tokens == 0) {
    return Err(ErrorCode::kInvalidInput, "the prompt is empty");
  }
  if (prompt_tokens >= options_.max_model_len) {
    return Err(ErrorCode::kInvalidInput,
               "the prompt has %lld tokens, but the context of this model is %d tokens for prompt "
               "and answer: shorten the prompt",
               static_cast<long long>(prompt_tokens), options_.max_model_len);
  }
  if (prompt_tokens >= scheduler_.max_request_tokens()) {
    return Err(ErrorCode::kInvalidInput,
               "the prompt has %lld tokens, but the KV cache holds %d (%d blocks of %d) for prompt "
               "and answer: shorten the prompt or give the cache more memory",
               static_cast<long long>(prompt_tokens), scheduler_.max_request_tokens(),
               options_.cache.num_blocks, options_.cache.block_size_tokens);
  }
  const std::pair<const char*, const std::vector<TokenId>*> lists[] = {
      {"prompt", &request.prompt},
      {"stop token ids", &request.stop_token_ids},
      {"forced tokens", &request.forced_tokens}};
  for (const auto& [what, tokens] : lists) {
    for (const TokenId token : *tokens) {
      if (token < 0 || token >= limits_.vocab_size) {
        return Err(ErrorCode::kInvalidInput, "token id %d in the %s is not in [0, %d)", token, what,
                   limits_.vocab_size);
      }
    }
  }
  if (request.forced_tokens.size() > static_cast<size_t>(std::max(request.max_new_tokens, 0))) {
    return Err(ErrorCode::kInvalidInput, "%zu forced tokens are more than max_new_tokens (%d)",
               request.forced_tokens.size(), request.max_new_tokens);
  }
  if (request.max_new_tokens < 1) {
    return Err(ErrorCode::kInvalidInput, "max_new_tokens is %d: at least 1",
               request.max_new_tokens);
  }
  if (request.min_new_tokens < 0 || request.min_new_tokens > request.max_new_tokens) {
    return Err(ErrorCode::kInvalidInput, "min_new_tokens is %d: between 0 and max_new_tokens (%d)",
               request.min_new_tokens, request.max_new_tokens);
  }
  if (request.min_new_tokens > 0 &&
      request.stop_token_ids.size() >= static_cast<size_t>(limits_.vocab_size)) {
    return Err(ErrorCode::kInvalidInput,
               "min_new_tokens with %zu stop token ids: nothing could be sampled",
               request.stop_token_ids.size());
  }
  if (request.retention != nullptr) {
    if (auto valid = kv::ValidateRetention(*request.retention); !valid) {
      return valid.error().Wrap("retention");
    }
  }
  if (request.quality.allow_lossy && !(request.quality.q_min >= 0 && request.quality.q_min <= 1)) {
    return Err(ErrorCode::kInvalidInput, "the least quality is %g: between 0 and 1",
               static_cast<double>(request.quality.q_min));
  }
  if (request.slo_ttft_us < 0 || request.slo_us < 0) {
    return Err(ErrorCode::kInvalidInput, "a latency goal is negative");
  }
  return model::ValidateSamplingParams(request.sampling, limits_.vocab_size);
}

RequestId Engine::ReserveId() { return ++last_id_; }

Result<RequestId> Engine::Submit(Request request, OutputSink sink) {
  const RequestId id = ReserveId();
  KVIK_TRY(Submit(id, std::move(request), std::move(sink)));
  return id;
}

Result<void> Engine::Submit(RequestId id, Request request, OutputSink sink) {
  if (auto valid = Validate(request); !valid.has_value()) {
    ++totals_.rejected;
    return valid;
  }
  const auto prompt_tokens = static_cast<int32_t>(request.prompt.size());
  request.max_new_tokens = std::min(request.max_new_tokens, max_request_tokens() - prompt_tokens);
  request.quality.workload = kv::WorkloadTag::Of(request.workload);

  auto active = std::make_unique<Active>(id, std::move(request), std::move(sink));
  active->seed = active->request.sampling.seed.value_or(Rng(options_.seed, id).Next());
  active->usage.prompt_tokens = prompt_tokens;
  active->timing.submitted_us = clock_.NowMicros();
  if (exchange_ != nullptr) {
    exchange_->Register(id, active->request, prompt_tokens, active->timing.submitted_us);
  }
  const auto added = scheduler_.Add(sched::SchedRequest{
      id, active->request.priority, std::move(active->request.prompt),
      active->request.max_new_tokens,
      kv::ExtraKeys{active->request.adapter, active->request.cache_salt}, active->request.session,
      active->request.will_continue, active->request.retention, active->request.quality});
  KVIK_CHECK(added.has_value(), "%s", added.error().message.c_str());  // Validate has seen it
  KVIK_CHECK(active_.emplace(id, std::move(active)).second);
  return {};
}

bool Engine::Abort(RequestId id) {
  const auto it = active_.find(id);
  if (it == active_.end()) {
    return false;
  }
  Finish(*it->second, FinishReason::kCancelled, std::nullopt, {});
  return true;
}

void Engine::AbortAll() {
  while (!active_.empty()) {
    Abort(active_.begin()->first);
  }
}

const kv::RequestFacts& Engine::facts(RequestId id) const {
  return scheduler_.sequence(id).facts();
}

bool Engine::HasWork() const { return !active_.empty(); }

StepReport Engine::Step() {
  StepReport report;
  const int64_t start_us = clock_.NowMicros();
  cache_->AdvanceTime(start_us);
  if (exchange_ != nullptr) {
    TakeEvents();
  }
  const sched::StepPlan plan = scheduler_.Schedule();
  if (exchange_ != nullptr && plan.missing_blocks > 0) {
    exchange_->NeedRoom(plan.missing_blocks);
  }
  NoteScheduled(plan);  // also of a step without rows: who was let in may wait for all of its KV
  if (plan.empty()) {
    NoteIdle(plan, report);
    return report;
  }
  scheduler_.Allocate(plan);
  int64_t control_us = clock_.NowMicros() - start_us;
  BuildBatch(plan);
  guard_.BeforeExecute(cache_->pool());
  const Result<model::LogitsView> logits = executor_.Execute(batch_);
  CountStep(plan, report);
  if (logits.has_value()) {
    const int64_t commit_us = clock_.NowMicros();
    scheduler_.Commit(plan);
    control_us += clock_.NowMicros() - commit_us;
    ShareControlTime(plan, control_us);
    guard_.AfterCommit(cache_->pool(), executor_);
    if (exchange_ != nullptr) {
      OfferSealed(plan);
    }
    SampleTokens(plan, *logits);
  } else {
    FailStep(plan, logits.error());
  }
#ifndef NDEBUG
  cache_->CheckInvariant();
#endif
  report.residency = cache_->TakeResidencySamples();
  report.duration_us = clock_.NowMicros() - start_us;
  return report;
}

void Engine::NoteIdle(const sched::StepPlan& plan, StepReport& report) const {
  if (!HasWork()) {
    report.idle_reason = "there are no requests";
    return;
  }
  report.idle_reason =
      std::string("every request waits for ") + (plan.wait_reason == sched::WaitReason::kNone
                                                     ? "KV from elsewhere"
                                                     : sched::WaitReasonName(plan.wait_reason));
  if (exchange_ != nullptr && exchange_->next_poll_us() != kv::kUntilEvent) {
    report.idle_us = std::max<int64_t>(exchange_->next_poll_us() - clock_.NowMicros(), 0);
  }
}

void Engine::TakeEvents() {
  if (exchange_ == nullptr) {
    return;
  }
  const KvExchange::News news = exchange_->Poll();
  for (const RequestId id : news.let_in) {
    scheduler_.LetIn(id);
  }
  for (const auto& [id, error] : news.failed) {
    if (const auto it = active_.find(id); it != active_.end()) {
      Finish(*it->second, FinishReason::kError, error, {});
    }
  }
}

void Engine::OfferSealed(const sched::StepPlan& plan) {
  for (const sched::ScheduledRequest& scheduled : plan.requests) {
    exchange_->OfferSealed(scheduled.id, scheduler_.sequence(scheduled.id));
  }
}

void Engine::NoteScheduled(const sched::StepPlan& plan) {
  const int64_t now_us = clock_.NowMicros();
  for (const RequestId id : plan.admitted) {
    Active& active = *active_.at(id);
    if (active.timing.scheduled_us == 0) {
      active.timing.scheduled_us = now_us;
      active.saved_us = SavedUs(scheduler_.sequence(id));
    }
  }
}

// What the request need not compute, in predicted time.
double Engine::SavedUs(const kv::Sequence& sequence) const {
  const int64_t size = options_.cache.block_size_tokens;
  double saved_us = 0;
  for (const kv::ResidentRun& run : sequence.hit_runs()) {
    saved_us +=
        options_.cache.policy.cost.RecomputeUs(run.first_block * size, run.num_blocks * size);
  }
  return saved_us;
}

void Engine::ShareControlTime(const sched::StepPlan& plan, int64_t control_us) {
  const double share_us =
      static_cast<double>(control_us) / static_cast<double>(plan.requests.size());
  for (const sched::ScheduledRequest& scheduled : plan.requests) {
    active_.at(scheduled.id)->timing.control_us += share_us;
  }
}

namespace {

// Whether the token before `run` comes from a cached run.
bool FollowsCachedRun(const kv::Sequence& sequence, const kv::TokenRun& run, int32_t block_size) {
  return std::any_of(sequence.hit_runs().begin(), sequence.hit_runs().end(),
                     [&](const kv::ResidentRun& hit) {
                       return (hit.first_block + hit.num_blocks) * block_size == run.first_pos;
                     });
}

}  // namespace

void Engine::BuildBatch(const sched::StepPlan& plan) {
  batch_.Clear();
  batch_.masks = cache_->masks();
  for (const sched::ScheduledRequest& scheduled : plan.requests) {
    const kv::Sequence& sequence = scheduler_.sequence(scheduled.id);
    for (const kv::TokenRun& run : scheduled.runs) {
      const bool last_run = run == scheduled.runs.back();
      const auto first_row = static_cast<size_t>(batch_.num_rows());
      batch_.Add(sequence.tokens().subspan(static_cast<size_t>(run.first_pos),
                                           static_cast<size_t>(run.num_tokens)),
                 run.first_pos, sequence.block_table(), scheduled.last_token && last_run);
      if (DefectPlanted(Defect::kGapPosition) &&
          FollowsCachedRun(sequence, run, options_.cache.block_size_tokens)) {
        for (size_t row = first_row; row < batch_.positions.size(); ++row) {
          ++batch_.positions[row];
        }
      }
    }
  }
}

void Engine::SampleTokens(const sched::StepPlan& plan, const model::LogitsView& logits) {
  int32_t row = 0;
  for (const sched::ScheduledRequest& scheduled : plan.requests) {
    if (scheduled.last_token) {
      SampleOne(*active_.at(scheduled.id), logits.Row(row++));
    }
  }
  KVIK_CHECK(row == logits.num_rows);
}

void Engine::SampleOne(Active& active, std::span<const float> logits) {
  Usage& usage = active.usage;
  const std::vector<TokenId>& forced = active.request.forced_tokens;
  const auto position = static_cast<size_t>(usage.completion_tokens);
  model::SampledToken sampled =
      sampler_.Sample(logits, active.request.sampling, active.penalties, active.Banned(),
                      active.seed, usage.completion_tokens);
  if (position < forced.size()) {
    sampled = active.request.sampling.num_logprobs < 0
                  ? model::SampledToken{forced[position], 0.0F, {}}
                  : sampler_.Score(logits, forced[position], active.request.sampling.num_logprobs);
  }
  if (usage.completion_tokens == 0) {
    const sched::CacheHits& hits = scheduler_.cache_hits(active.id);
    usage.cached_tokens = hits.cached_tokens;
    usage.prefix_tokens = hits.prefix_tokens;
    usage.cached_segments = hits.segments;
    if (exchange_ != nullptr) {
      usage.external_blocks = exchange_->external_blocks(active.id);
      usage.external_tokens = usage.external_blocks * options_.cache.block_size_tokens;
    }
    active.timing.first_token_us = clock_.NowMicros();
    CountPrompt(active);
  }
  usage.least_q = std::min(
      usage.least_q, scheduler_.sequence(active.id).quality().For(active.request.quality.workload));
  const TokenId token = sampled.token;
  TokenOutput token_output;
  token_output.token = token;
  token_output.logprob = sampled.logprob;
  for (const model::TokenScore& score : sampled.top) {
    token_output.top.push_back(TokenLogprob{score.token, score.logprob});
  }
  std::vector<TokenOutput> tokens;
  tokens.push_back(std::move(token_output));

  if (active.call_begin == 0 && active.CallsTool(scheduler_.sequence(active.id).tokens(), token)) {
    active.call_begin = usage.completion_tokens + 1;
    scheduler_.NoteToolCall(active.id);
  }
  const bool stop = active.StopsAt(token);
  ++usage.completion_tokens;
  ++totals_.generation_tokens;
  active.penalties.AddOutput(token);
  if (stop || usage.completion_tokens == active.request.max_new_tokens) {
    Finish(active, stop ? FinishReason::kStop : FinishReason::kLength, std::nullopt,
           std::move(tokens));
    return;
  }
  scheduler_.Append(active.id, token);
  RequestOutput output;
  output.id = active.id;
  output.tokens = std::move(tokens);
  output.usage = usage;
  output.timing = active.timing;
  active.sink(std::move(output));
}

void Engine::CountPrompt(const Active& active) {
  const Usage& usage = active.usage;
  const int32_t size = options_.cache.block_size_tokens;
  totals_.prompts += 1;
  totals_.prompts_with_hit += usage.cached_tokens > 0 ? 1 : 0;
  totals_.prompt_tokens += usage.prompt_tokens;
  totals_.prompt_tokens_cached += usage.cached_tokens;
  totals_.prompt_tokens_external += usage.external_tokens;
  totals_.prompt_tokens_computed +=
      usage.prompt_tokens - usage.cached_tokens - usage.external_tokens;
  totals_.prompt_tokens_prefix += usage.prefix_tokens;
  totals_.prompt_blocks += usage.prompt_tokens / size;
  totals_.prompt_blocks_cached += usage.cached_tokens / size;
  totals_.prompt_blocks_external += usage.external_blocks;
  const double all_us = options_.cache.policy.cost.RecomputeUs(0, usage.prompt_tokens);
  totals_.no_cache_cost_us += all_us;
  totals_.miss_cost_us += all_us - active.saved_us;
}

// The step's blocks were never published, so removing its requests forgets everything about it.
void Engine::FailStep(const sched::StepPlan& plan, const Error& error) {
  ++totals_.failed_steps;
  for (const sched::ScheduledRequest& scheduled : plan.requests) {
    Finish(*active_.at(scheduled.id), FinishReason::kError, error, {});
  }
}

namespace {

kv::CloseReason ReasonOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kCancelled:
      return kv::CloseReason::kAborted;
    case FinishReason::kError:
      return kv::CloseReason::kFailed;
    default:
      return kv::CloseReason::kFinished;
  }
}

}  // namespace

std::shared_ptr<const kv::TransferReport> Engine::CloseTicket(const Active& active,
                                                              kv::CloseReason reason) {
  if (exchange_ == nullptr) {
    return nullptr;
  }
  return exchange_->Close(
      active.id, kv::TicketFate{reason, active.timing.scheduled_us, active.timing.first_token_us,
                                clock_.NowMicros()});
}

// The last output, after which `active` is gone.
void Engine::Finish(Active& active, FinishReason reason, std::optional<Error> error,
                    std::vector<TokenOutput> tokens) {
  switch (reason) {
    case FinishReason::kStop:
      ++totals_.finished_stop;
      break;
    case FinishReason::kLength:
      ++totals_.finished_length;
      break;
    case FinishReason::kCancelled:
      ++totals_.finished_cancelled;
      break;
    case FinishReason::kError:
      ++totals_.finished_error;
      break;
  }
  active.usage.preemptions = scheduler_.preemptions(active.id);
  if (active.call_begin > 0) {
    scheduler_.NoteToolCall(active.id, active.ToolOf(scheduler_.sequence(active.id).tokens()));
  }
  active.timing.finished_us = clock_.NowMicros();
  std::shared_ptr<const kv::TransferReport> transfer = CloseTicket(active, ReasonOf(reason));
  scheduler_.Remove(active.id);
  active.timing.control_us += static_cast<double>(clock_.NowMicros() - active.timing.finished_us);
  RequestOutput output;
  output.id = active.id;
  output.tokens = std::move(tokens);
  output.finish = reason;
  output.error = std::move(error);
  output.usage = active.usage;
  output.timing = active.timing;
  output.transfer = std::move(transfer);
  const OutputSink sink = std::move(active.sink);
  active_.erase(output.id);
  sink(std::move(output));
}

void Engine::CountStep(const sched::StepPlan& plan, StepReport& report) {
  report.num_tokens = plan.num_tokens;
  report.num_requests = static_cast<int32_t>(plan.requests.size());
  report.num_decodes = plan.num_decodes;
  report.num_segments = static_cast<int32_t>(batch_.segments.size());
  ++totals_.steps;
  totals_.step_tokens += plan.num_tokens;
}

EngineStats Engine::stats() const {
  EngineStats stats = totals_;
  stats.cache = cache_->stats();
  stats.scheduler = scheduler_.stats();
  stats.policy = cache_->policy().Readings();
  if (exchange_ != nullptr) {
    stats.exchange = exchange_->stats();
  }
  stats.kv_cache_usage =
      static_cast<double>(stats.cache.filling_blocks + stats.cache.referenced_blocks) /
      static_cast<double>(stats.cache.total_blocks);
  return stats;
}

kv::KvCache& Engine::cache() { return *cache_; }

}  // namespace kvik::engine
