// SPDX-License-Identifier: Apache-2.0
#include "sched/scheduler.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace kvik::sched {

struct Scheduler::Entry {
  Entry(SchedRequest request, int32_t block_size_tokens)
      : id(request.id),
        priority(request.priority),
        prompt_tokens(static_cast<int32_t>(request.prompt.size())),
        max_new_tokens(request.max_new_tokens),
        sequence(std::move(request.prompt), std::move(request.extra), block_size_tokens,
                 request.quality) {
    sequence.facts().request = id;
    sequence.facts().prompt_tokens = prompt_tokens;
    sequence.facts().session = request.session;
    sequence.facts().will_continue = request.will_continue;
    sequence.facts().retention = std::move(request.retention);
  }

  RequestId id;
  int32_t priority;
  int32_t prompt_tokens;
  int32_t max_new_tokens;
  kv::Sequence sequence;
  bool hits_counted = false;
  CacheHits hits;
  int32_t preemptions = 0;
  int32_t overtaken = 0;  // while it was the first to be admitted
  int32_t high_pos = 0;   // positions below had KV before the last preemption

  [[nodiscard]] int32_t tokens_left() const {
    return prompt_tokens + max_new_tokens - sequence.num_tokens();
  }
};

bool Scheduler::MoreImportant::operator()(const Entry* a, const Entry* b) const {
  return std::tie(a->priority, a->id) < std::tie(b->priority, b->id);
}

Result<void> ValidateSchedulerOptions(const SchedulerOptions& options) {
  if (options.max_num_seqs < 1) {
    return Err(ErrorCode::kInvalidInput, "max_num_seqs is %d: at least 1", options.max_num_seqs);
  }
  if (options.max_num_batched_tokens < options.max_num_seqs) {
    return Err(ErrorCode::kInvalidInput,
               "max_num_batched_tokens is %d: at least max_num_seqs (%d), so that every running "
               "request can decode in every step",
               options.max_num_batched_tokens, options.max_num_seqs);
  }
  if (options.chunk_floor < 1 || options.chunk_max < options.chunk_floor) {
    return Err(ErrorCode::kInvalidInput,
               "chunk_floor is %d and chunk_max %d: 1 <= chunk_floor <= chunk_max",
               options.chunk_floor, options.chunk_max);
  }
  if (options.chunk_decode_threshold < 1) {
    return Err(ErrorCode::kInvalidInput, "chunk_decode_threshold is %d: at least 1",
               options.chunk_decode_threshold);
  }
  if (options.reserve_new_tokens < 0) {
    return Err(ErrorCode::kInvalidInput, "reserve_new_tokens is %d: at least 0",
               options.reserve_new_tokens);
  }
  if (options.tpot_slo_us < 0) {
    return Err(ErrorCode::kInvalidInput, "tpot_slo_us is %lld: at least 0",
               static_cast<long long>(options.tpot_slo_us));
  }
  return {};
}

int32_t PrefillBudget(const SchedulerOptions& options, int32_t num_decodes) {
  const int32_t left = options.max_num_batched_tokens - num_decodes;
  if (num_decodes == 0) {
    return left;
  }
  const int64_t shrunk = static_cast<int64_t>(options.chunk_max) * options.chunk_decode_threshold /
                         std::max(num_decodes, options.chunk_decode_threshold);
  return std::min(left, std::max(options.chunk_floor, static_cast<int32_t>(shrunk)));
}

const char* WaitReasonName(WaitReason reason) {
  switch (reason) {
    case WaitReason::kNone:
      return "none";
    case WaitReason::kCapacity:
      return "capacity";
    case WaitReason::kSeqs:
      return "seqs";
    case WaitReason::kBudget:
      return "budget";
  }
  return "unknown";
}

Scheduler::Scheduler(const SchedulerOptions& options, kv::KvCache& cache)
    : options_(options), cache_(cache) {
  const auto valid = ValidateSchedulerOptions(options);
  KVIK_CHECK(valid.has_value(), "%s", valid.error().message.c_str());
}

Scheduler::~Scheduler() {
  for (const auto& [id, entry] : entries_) {
    cache_.Release(entry->sequence);
  }
}

int32_t Scheduler::max_request_tokens() const {
  return cache_.options().num_blocks * cache_.options().block_size_tokens;
}

Result<void> Scheduler::Add(SchedRequest request) {
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  const int64_t tokens = prompt_tokens + request.max_new_tokens;
  if (prompt_tokens < 1 || request.max_new_tokens < 1) {
    return Err(ErrorCode::kInvalidInput,
               "a request needs a prompt and max_new_tokens >= 1; it has %lld and %d",
               static_cast<long long>(prompt_tokens), request.max_new_tokens);
  }
  if (tokens > max_request_tokens()) {
    return Err(
        ErrorCode::kInvalidInput,
        "the prompt has %lld tokens and may grow by %d, but the KV cache holds %d (%d blocks "
        "of %d): shorten it or give the cache more memory",
        static_cast<long long>(prompt_tokens), request.max_new_tokens, max_request_tokens(),
        cache_.options().num_blocks, cache_.options().block_size_tokens);
  }
  const RequestId id = request.id;
  auto entry = std::make_unique<Entry>(std::move(request), cache_.options().block_size_tokens);
  Entry* added = entry.get();
  KVIK_CHECK(entries_.emplace(id, std::move(entry)).second, "request id used twice");
  if (loader_ != nullptr && loader_->Added(id, added->sequence)) {
    held_back_.insert(added);
  } else {
    Enqueue(*added);
  }
  return {};
}

void Scheduler::Enqueue(Entry& entry) {
  waiting_.insert(&entry);
  if (cache_.IsAwaited(entry.sequence)) {
    awaited_.insert(&entry);
  }
}

void Scheduler::LetIn(RequestId id) {
  Entry& entry = At(id);
  if (held_back_.erase(&entry) > 0) {
    Enqueue(entry);
  }
}

int32_t Scheduler::NumRunnable() const {
  const auto running = static_cast<int32_t>(running_.size());
  if (loader_ == nullptr || running < options_.max_num_seqs) {
    return running;
  }
  return static_cast<int32_t>(
      std::count_if(running_.begin(), running_.end(),
                    [](const Entry* entry) { return !entry->sequence.blocked(); }));
}

StepPlan Scheduler::Schedule() {
  StepPlan plan;
  ReserveForRunning(plan);
  MakeRoomForPriority(plan);
  AddDecodes(plan);
  int32_t budget_tokens = PrefillBudget(options_, plan.num_decodes);
  AddPrefill(plan, budget_tokens);
  AdmitWaiting(plan, budget_tokens);
  wait_reason_ = plan.wait_reason;
  return plan;
}

// REQUIRES: somebody waits.
Scheduler::Entry& Scheduler::NextWaiting() const {
  Entry& first = **waiting_.begin();
  if (awaited_.empty() || first.overtaken >= kMaxOvertakes) {
    return first;
  }
  Entry& awaited = **awaited_.begin();
  return awaited.priority == first.priority ? awaited : first;
}

// A no-op unless admission reserved less than the whole need.
void Scheduler::ReserveForRunning(StepPlan& plan) {
  const std::vector<Entry*> running(running_.begin(), running_.end());
  for (Entry* entry : running) {
    while (running_.contains(entry) &&
           !cache_.Reserve(entry->sequence, entry->sequence.num_tokens())) {
      Preempt(**running_.rbegin(), plan);  // `entry` itself, when it is the last one
    }
  }
}

void Scheduler::MakeRoomForPriority(StepPlan& plan) {
  if (waiting_.empty() || running_.empty()) {
    return;
  }
  Entry& head = NextWaiting();
  if (head.priority >= (*running_.rbegin())->priority) {
    return;
  }
  const kv::AdmissionPlan admission = cache_.Plan(head.sequence, NeedTokens(head));
  if (!FitsWithoutWorse(head, admission)) {
    return;
  }
  while (NumRunnable() >= options_.max_num_seqs ||
         cache_.BlocksTaken(admission) > cache_.AvailableBlocks()) {
    Entry& least = **running_.rbegin();
    KVIK_CHECK(least.priority > head.priority);
    Preempt(least, plan);
  }
}

// What MakeRoomForPriority would achieve, without doing it: preempting in vain costs work.
bool Scheduler::FitsWithoutWorse(const Entry& head, const kv::AdmissionPlan& admission) const {
  std::vector<bool> kept(static_cast<size_t>(cache_.options().num_blocks), false);
  int32_t kept_blocks = 0;
  int32_t kept_seqs = 0;
  const auto keep = [&](BlockId block) {
    kept_blocks += kept[static_cast<size_t>(block)] ? 0 : 1;
    kept[static_cast<size_t>(block)] = true;
  };
  for (const BlockId block : cache_.BlocksInUseElsewhere()) {
    keep(block);
  }
  for (const Entry* entry : running_) {
    if (entry->priority > head.priority) {
      continue;
    }
    kept_seqs += entry->sequence.blocked() ? 0 : 1;
    for (const BlockId block : entry->sequence.block_table()) {
      if (block == kNoBlock) {
        ++kept_blocks;  // reserved
      } else {
        keep(block);
      }
    }
  }
  int32_t taken = admission.num_new_blocks;
  for (const BlockId block : admission.hits.blocks) {
    taken += block != kNoBlock && !kept[static_cast<size_t>(block)] ? 1 : 0;
  }
  return kept_seqs < options_.max_num_seqs && kept_blocks + taken <= cache_.options().num_blocks;
}

void Scheduler::AddDecodes(StepPlan& plan) {
  for (const Entry* entry : running_) {
    if (entry->sequence.num_to_compute() == 1 && !StepIsFull(plan)) {
      AddChunk(plan, *entry, 1);
      ++plan.num_decodes;
    }
  }
}

void Scheduler::AddPrefill(StepPlan& plan, int32_t& budget_tokens) {
  for (const Entry* entry : running_) {
    if (budget_tokens > 0 && entry->sequence.num_to_compute() > 1 && !entry->sequence.blocked() &&
        !StepIsFull(plan)) {
      const int32_t before = plan.num_tokens;
      const int32_t tokens = FitToSlo(plan, *entry, std::min(options_.chunk_max, budget_tokens));
      if (tokens == 0) {
        budget_tokens = 0;  // the least important ones wait
        return;
      }
      AddChunk(plan, *entry, tokens);
      budget_tokens -= plan.num_tokens - before;
    }
  }
}

void Scheduler::AdmitWaiting(StepPlan& plan, int32_t& budget_tokens) {
  while (!waiting_.empty()) {
    Entry& entry = NextWaiting();
    if (NumRunnable() >= options_.max_num_seqs) {
      plan.wait_reason = WaitReason::kSeqs;
      return;
    }
    if (budget_tokens == 0) {
      plan.wait_reason = WaitReason::kBudget;
      return;
    }
    const bool just_preempted =
        std::find(plan.preempted.begin(), plan.preempted.end(), entry.id) != plan.preempted.end();
    if (just_preempted) {
      plan.wait_reason = WaitReason::kCapacity;
      return;
    }
    // Nothing is evicted between Plan and Admit, so the plan cannot be stale.
    const kv::AdmissionPlan admission = cache_.Plan(entry.sequence, NeedTokens(entry));
    const auto outcome = cache_.Admit(entry.sequence, admission);
    if (outcome != kv::AdmitOutcome::kAdmitted) {
      KVIK_CHECK(outcome == kv::AdmitOutcome::kNoRoom);
      plan.wait_reason = WaitReason::kCapacity;
      plan.missing_blocks = cache_.BlocksTaken(admission) - cache_.AvailableBlocks();
      return;
    }
    if (Entry& first = **waiting_.begin(); &first != &entry) {
      ++first.overtaken;
      ++totals_.overtakes;
    }
    waiting_.erase(&entry);
    awaited_.erase(&entry);
    running_.insert(&entry);
    plan.admitted.push_back(entry.id);
    CountHits(entry);
    if (loader_ != nullptr) {
      loader_->Admitted(entry.id, entry.sequence);
      if (entry.sequence.blocked()) {
        continue;
      }
    }
    const int32_t before = plan.num_tokens;
    const int32_t tokens = FitToSlo(plan, entry, std::min(options_.chunk_max, budget_tokens));
    if (tokens == 0) {
      budget_tokens = 0;  // it begins with the next step
      continue;
    }
    AddChunk(plan, entry, tokens);
    budget_tokens -= plan.num_tokens - before;
  }
}

// The most of `tokens` with which the step is predicted to meet the SLO; 0: not even a few, and
// the step has prefill already.
int32_t Scheduler::FitToSlo(const StepPlan& plan, const Entry& entry, int32_t tokens) const {
  if (options_.tpot_slo_us == 0 || plan.num_decodes == 0) {
    return tokens;
  }
  const auto fits = [&](int32_t count) {
    kv::StepFeatures features = plan.features;
    for (const kv::TokenRun& run : entry.sequence.NextRuns(count)) {
      features.AddSegment(run.first_pos, run.num_tokens);
    }
    return options_.cost.StepUs(features) <= static_cast<double>(options_.tpot_slo_us);
  };
  const int32_t least = std::min(kMinChunkTokens, tokens);
  if (!fits(least)) {
    return plan.num_tokens == plan.num_decodes ? least : 0;
  }
  int32_t low = least;  // fits
  int32_t high = tokens + 1;
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

void Scheduler::AddChunk(StepPlan& plan, const Entry& entry, int32_t budget_tokens) const {
  ScheduledRequest scheduled;
  scheduled.id = entry.id;
  scheduled.runs = entry.sequence.NextRuns(budget_tokens);
  KVIK_CHECK(!scheduled.runs.empty(), "a running request has nothing to compute");
  for (const kv::TokenRun& run : scheduled.runs) {
    scheduled.num_tokens += run.num_tokens;
  }
  scheduled.last_token = scheduled.runs.back().end_pos() == entry.sequence.num_tokens();
  if (scheduled.last_token && scheduled.num_tokens == 1) {
    plan.features.AddDecode(entry.sequence.num_tokens());
  } else {
    for (const kv::TokenRun& run : scheduled.runs) {
      plan.features.AddSegment(run.first_pos, run.num_tokens);
    }
  }
  plan.num_tokens += scheduled.num_tokens;
  plan.requests.push_back(std::move(scheduled));
}

// Once per request, whatever the number of tries and preemptions.
void Scheduler::CountHits(Entry& entry) {
  if (entry.hits_counted || !cache_.options().prefix_caching) {
    return;
  }
  entry.hits_counted = true;
  entry.hits.cached_tokens = entry.sequence.num_hit_tokens();
  entry.hits.prefix_tokens = entry.sequence.next_pos();
  entry.hits.segments = static_cast<int32_t>(entry.sequence.hit_runs().size());
  totals_.prefix_query_tokens += entry.prompt_tokens;
  totals_.prefix_hit_tokens += entry.hits.cached_tokens;
}

void Scheduler::Preempt(Entry& entry, StepPlan& plan) {
  entry.high_pos = std::max(entry.high_pos, entry.sequence.next_pos());
  ++entry.preemptions;
  ++totals_.preemptions;
  cache_.Release(entry.sequence);
  running_.erase(&entry);
  waiting_.insert(&entry);
  plan.preempted.push_back(entry.id);
  if (loader_ != nullptr) {
    loader_->Preempted(entry.id, entry.sequence);
  }
}

// All tokens there are, and those to come that admission promises room for. The last generated
// token is never computed, so it needs none.
int32_t Scheduler::NeedTokens(const Entry& entry) const {
  return entry.sequence.num_tokens() +
         std::min(options_.reserve_new_tokens, std::max(entry.tokens_left() - 1, 0));
}

void Scheduler::Allocate(const StepPlan& plan) {
  for (const ScheduledRequest& scheduled : plan.requests) {
    cache_.Allocate(At(scheduled.id).sequence, scheduled.runs);
  }
}

void Scheduler::Commit(const StepPlan& plan) {
  for (const ScheduledRequest& scheduled : plan.requests) {
    Entry& entry = At(scheduled.id);
    cache_.Commit(entry.sequence, scheduled.runs);
    for (const kv::TokenRun& run : scheduled.runs) {
      totals_.recomputed_tokens +=
          std::max(0, std::min(run.end_pos(), entry.high_pos) - run.first_pos);
    }
  }
}

void Scheduler::Append(RequestId id, TokenId token) {
  Entry& entry = At(id);
  KVIK_CHECK(entry.sequence.num_to_compute() == 0 && entry.tokens_left() >= 1);
  entry.sequence.Append(token);
  ++entry.sequence.facts().output_tokens;
}

void Scheduler::NoteToolCall(RequestId id, uint64_t tool) {
  kv::RequestFacts& facts = At(id).sequence.facts();
  facts.tool_call = true;
  facts.tool = tool;
}

bool Scheduler::Remove(RequestId id) {
  const auto it = entries_.find(id);
  if (it == entries_.end()) {
    return false;
  }
  Entry* entry = it->second.get();
  cache_.Release(entry->sequence);
  running_.erase(entry);
  waiting_.erase(entry);
  awaited_.erase(entry);
  held_back_.erase(entry);
  entries_.erase(it);
  return true;
}

Scheduler::Entry& Scheduler::At(RequestId id) const {
  const auto it = entries_.find(id);
  KVIK_CHECK(it != entries_.end(), "unknown request %llu", static_cast<unsigned long long>(id));
  return *it->second;
}

bool Scheduler::HasWork() const { return !entries_.empty(); }

const kv::Sequence& Scheduler::sequence(RequestId id) const { return At(id).sequence; }

const CacheHits& Scheduler::cache_hits(RequestId id) const { return At(id).hits; }

int32_t Scheduler::preemptions(RequestId id) const { return At(id).preemptions; }

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = totals_;
  stats.running = static_cast<int32_t>(running_.size());
  stats.held_back = static_cast<int32_t>(held_back_.size());
  stats.waiting = static_cast<int32_t>(waiting_.size()) + stats.held_back;
  stats.waiting_for_capacity =
      wait_reason_ == WaitReason::kCapacity ? stats.waiting - stats.held_back : 0;
  return stats;
}

}  // namespace kvik::sched
