// SPDX-License-Identifier: Apache-2.0
#include "workload/replay.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <list>
#include <memory>
#include <optional>
#include <queue>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "kv/kv_cache.h"
#include "workload/future.h"
#include "workload/load_report.h"
#include "workload/offline_bound.h"
#include "workload/offline_policies.h"

namespace kvik::workload {
namespace {

struct Totals {
  int64_t requests = 0;
  int64_t blocks = 0;
  int64_t hit_blocks = 0;
  int64_t prefix_blocks = 0;
  int64_t hit_requests = 0;
  double cost_us = 0;
  double missed_us = 0;
  std::vector<double> segments;
  std::vector<double> ttft_ms;
  std::vector<double> job_s;
  int64_t clock_us = 0;
};

size_t FirstMeasured(const Trace& trace, const ReplayOptions& options) {
  return static_cast<size_t>(static_cast<double>(trace.requests.size()) * options.warmup_share);
}

double Percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

bool IsClosedLoop(const Trace& trace) {
  return std::any_of(trace.requests.begin(), trace.requests.end(),
                     [](const TraceRequest& request) { return request.gap_us >= 0; });
}

// No replay: only what it would cost at least.
ReplayCell BoundCell(const Trace& trace, const ReplayOptions& options) {
  const size_t first = FirstMeasured(trace, options);
  double cost_us = 0;
  for (size_t i = first; i < trace.requests.size(); ++i) {
    cost_us += options.policy.cost.RecomputeUs(0, trace.requests[i].input_tokens);
  }
  ReplayCell cell;
  cell.requests = static_cast<int64_t>(trace.requests.size() - first);
  cell.only_bound = true;
  cell.miss_cost_pct =
      100 -
      Percent(SavingsBoundUs(trace, options.policy.cost, options.cache_blocks, first), cost_us);
  return cell;
}

class Driver {
 public:
  Driver(const Trace& trace, const ReplayOptions& options, kv::KvCache& cache, Future& future,
         const Clock& clock)
      : trace_(trace),
        options_(options),
        cache_(cache),
        future_(future),
        clock_(clock),
        goes_on_(trace.requests.size(), false) {
    std::unordered_map<int64_t, size_t> last;
    for (size_t i = 0; i < trace.requests.size() && options.hint_accuracy >= 0; ++i) {
      const auto [it, first] = last.try_emplace(trace.requests[i].session, i);
      if (!first && trace.requests[i].session >= 0) {
        goes_on_[it->second] = true;
      }
      it->second = i;
    }
  }

  void Run() {
    const size_t first_measured = FirstMeasured(trace_, options_);
    for (size_t i = 0; i < trace_.requests.size(); ++i) {
      Serve(i, trace_.requests[i].arrival_us, i >= first_measured);
    }
  }

  void RunQueue() {
    const size_t first_measured = FirstMeasured(trace_, options_);
    using Arrival = std::pair<int64_t, size_t>;  // time, request: those of one time in order
    std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> coming;
    const std::vector<size_t> next = NextTurns(coming);
    std::list<Waiting> waiting;  // in order of arrival
    std::unordered_map<int64_t, Job> jobs;
    int64_t free_us = 0;
    for (size_t served = 0; !coming.empty() || !waiting.empty(); ++served) {
      const int64_t start_us = waiting.empty() ? std::max(coming.top().first, free_us) : free_us;
      for (; !coming.empty() && coming.top().first <= start_us; coming.pop()) {
        const auto [arrival_us, index] = coming.top();
        waiting.push_back({arrival_us, index, IsAwaited(index, start_us)});
      }
      const Waiting request = TakeNext(waiting);
      const bool measured = served >= first_measured;
      free_us = start_us + Serve(request.index, start_us, measured);
      if (measured) {
        totals_.ttft_ms.push_back(static_cast<double>(free_us - request.arrival_us) * 1e-3);
      }
      Job& job = jobs.try_emplace(trace_.requests[request.index].session,
                                  Job{request.arrival_us, measured})
                     .first->second;
      job.end_us = free_us;
      if (next[request.index] != kNone) {
        coming.emplace(free_us + trace_.requests[next[request.index]].gap_us, next[request.index]);
      }
    }
    for (const auto& [session, job] : jobs) {
      if (session >= 0 && job.measured) {
        totals_.job_s.push_back(static_cast<double>(job.end_us - job.begin_us) * 1e-6);
      }
    }
  }

  [[nodiscard]] const Totals& totals() const { return totals_; }

 private:
  struct Waiting {
    int64_t arrival_us = 0;
    size_t index = 0;
    bool awaited = false;
    int32_t overtaken = 0;
  };
  struct Job {
    int64_t begin_us = 0;
    bool measured = false;  // the first request was
    int64_t end_us = 0;
  };

  // Without anything pinned the cache hears of nothing.
  bool IsAwaited(size_t index, int64_t now_us) {
    if (cache_.policy().stats().pinned == 0) {
      return false;
    }
    cache_.AdvanceTime(now_us);
    kv::Sequence sequence = MakeSequence(index);
    return cache_.IsAwaited(sequence);
  }

  static Waiting TakeNext(std::list<Waiting>& waiting) {
    constexpr int32_t kMaxOvertakes = 8;
    auto next = waiting.begin();
    if (next->overtaken < kMaxOvertakes) {
      const auto awaited =
          std::find_if(waiting.begin(), waiting.end(), [](const Waiting& w) { return w.awaited; });
      if (awaited != waiting.end() && awaited != next) {
        ++next->overtaken;
        next = awaited;
      }
    }
    const Waiting taken = *next;
    waiting.erase(next);
    return taken;
  }

  // What the client would say of its session.
  [[nodiscard]] std::optional<bool> HintOf(size_t index) const {
    if (options_.hint_accuracy < 0) {
      return std::nullopt;
    }
    const bool truth = goes_on_[index];
    return Rng(options_.policy.seed, index).Uniform() < options_.hint_accuracy ? truth : !truth;
  }

  kv::Sequence MakeSequence(size_t index) const {
    const TraceRequest& request = trace_.requests[index];
    std::vector<kv::ContentKey> keys;
    keys.reserve(request.blocks.size());
    for (const uint64_t block : request.blocks) {
      keys.push_back(KeyOf(block));
    }
    // Real traces hold empty requests; a sequence has at least a token.
    kv::Sequence sequence(std::move(keys), std::max(request.input_tokens, 1),
                          trace_.block_size_tokens);
    kv::RequestFacts& facts = sequence.facts();
    facts.request = index + 1;
    facts.session = static_cast<uint64_t>(request.session + 1);
    facts.turn = request.turn;
    facts.prompt_tokens = request.input_tokens;
    facts.will_continue = HintOf(index);
    return sequence;
  }

  static constexpr size_t kNone = std::numeric_limits<size_t>::max();

  // The request that waits for the answer to each, or kNone; the others go to `open`.
  template <typename Queue>
  std::vector<size_t> NextTurns(Queue& open) const {
    std::vector<size_t> next(trace_.requests.size(), kNone);
    std::unordered_map<int64_t, size_t> last;
    for (size_t i = 0; i < trace_.requests.size(); ++i) {
      const TraceRequest& request = trace_.requests[i];
      const auto [it, first] = last.try_emplace(request.session, i);
      if (request.gap_us < 0 || first) {
        open.emplace(request.arrival_us, i);
      } else {
        next[it->second] = i;
      }
      it->second = i;
    }
    return next;
  }

  // The time that the queue's server needs.
  int64_t Serve(size_t index, int64_t now_us, bool measured) {
    const TraceRequest& request = trace_.requests[index];
    kv::Sequence sequence = MakeSequence(index);
    future_.SetNow(static_cast<int64_t>(index));

    const int64_t start_us = clock_.NowMicros();
    cache_.AdvanceTime(now_us);
    const kv::AdmissionPlan plan = cache_.Plan(sequence, sequence.num_tokens());
    // Larger than the whole cache: computed and not kept.
    const bool fits = cache_.Admit(sequence, plan) == kv::AdmitOutcome::kAdmitted;
    const std::vector<kv::ResidentRun> hits =
        fits ? sequence.hit_runs() : std::vector<kv::ResidentRun>{};
    int64_t service_us = ServiceUs(std::vector{kv::TokenRun{0, sequence.num_tokens()}});
    if (fits) {
      const auto runs = sequence.NextRuns(sequence.num_tokens());
      service_us = ServiceUs(runs);
      cache_.Allocate(sequence, runs);
      cache_.Commit(sequence, runs);
      if (options_.queue) {
        cache_.AdvanceTime(now_us + service_us - std::llround(TierSavesUs(request, hits)));
      }
      sequence.facts().output_tokens = request.output_tokens;
      sequence.facts().tool_call = request.tool_call;
      sequence.facts().tool = request.tool;
      cache_.Release(sequence);
    }
    const int64_t end_us = clock_.NowMicros();
    const double fetched_us = TierSavesUs(request, hits);
    service_us -= std::llround(fetched_us);
    if (fits && options_.policy.tier != nullptr) {
      seen_.insert(request.blocks.begin(), request.blocks.end());
    }
    if (measured) {
      Count(request, hits, fetched_us, end_us - start_us);
    }
    if (options_.observe) {
      options_.observe(RequestOutcome{index, measured, hits});
    }
    return service_us;
  }

  [[nodiscard]] int64_t ServiceUs(const std::vector<kv::TokenRun>& runs) const {
    kv::StepFeatures features;
    for (const kv::TokenRun& run : runs) {
      features.AddSegment(run.first_pos, run.num_tokens);
    }
    return std::llround(options_.policy.cost.StepUs(features));
  }

  // Of computing what is not cached: what was cached once is in the tier below, if there is one.
  [[nodiscard]] double TierSavesUs(const TraceRequest& request,
                                   const std::vector<kv::ResidentRun>& hits) const {
    const kv::PolicyOptions& policy = options_.policy;
    const int32_t size = trace_.block_size_tokens;
    if (policy.tier == nullptr) {
      return 0;
    }
    double saved_us = 0;
    auto run = hits.begin();
    // The block of the last token is always computed.
    for (int32_t i = 0; i < (request.input_tokens - 1) / size; ++i) {
      while (run != hits.end() && run->first_block + run->num_blocks <= i) {
        ++run;
      }
      const uint64_t block = request.blocks[static_cast<size_t>(i)];
      if ((run == hits.end() || i < run->first_block) && seen_.contains(block)) {
        const int64_t first_pos = int64_t{i} * size;
        saved_us += policy.cost.RecomputeUs(first_pos, size) -
                    kv::ReturnCostUs(policy.cost, policy.tier.get(), KeyOf(block).Digest(),
                                     first_pos, size);
      }
    }
    return saved_us;
  }

  void Count(const TraceRequest& request, const std::vector<kv::ResidentRun>& hits,
             double fetched_us, int64_t clock_us) {
    const kv::CostModel& cost = options_.policy.cost;
    const int32_t size = trace_.block_size_tokens;
    double missed_us = cost.RecomputeUs(0, request.input_tokens);
    totals_.cost_us += missed_us;
    int32_t hit_blocks = 0;
    for (const kv::ResidentRun& run : hits) {
      hit_blocks += run.num_blocks;
      missed_us -=
          cost.RecomputeUs(int64_t{run.first_block} * size, int64_t{run.num_blocks} * size);
    }
    totals_.missed_us += missed_us - fetched_us;
    totals_.requests += 1;
    totals_.blocks += static_cast<int64_t>(request.blocks.size());
    totals_.hit_blocks += hit_blocks;
    if (!hits.empty() && hits.front().first_block == 0) {
      totals_.prefix_blocks += hits.front().num_blocks;
    }
    totals_.hit_requests += hit_blocks > 0 ? 1 : 0;
    totals_.segments.push_back(static_cast<double>(hits.size()));
    totals_.clock_us += clock_us;
  }

  const Trace& trace_;
  const ReplayOptions& options_;
  kv::KvCache& cache_;
  Future& future_;
  const Clock& clock_;
  std::vector<bool> goes_on_;          // [requests] another of its session comes later
  std::unordered_set<uint64_t> seen_;  // blocks that were cached, where there is a tier below
  Totals totals_;
};

}  // namespace

ReplayCell MeanOf(std::span<const ReplayCell> cells) {
  ReplayCell mean = cells.front();
  mean.repeats = static_cast<int32_t>(cells.size());
  for (double ReplayCell::*const field :
       {&ReplayCell::block_hit_pct, &ReplayCell::prefix_hit_pct, &ReplayCell::request_hit_pct,
        &ReplayCell::miss_cost_pct, &ReplayCell::segments_mean, &ReplayCell::segments_p99,
        &ReplayCell::us_per_request}) {
    double sum = 0;
    for (const ReplayCell& cell : cells) {
      sum += cell.*field;
    }
    mean.*field = sum / static_cast<double>(cells.size());
  }
  for (double Distribution::*const field :
       {&Distribution::mean, &Distribution::p50, &Distribution::p90, &Distribution::p99}) {
    double sum = 0;
    double job_sum = 0;
    for (const ReplayCell& cell : cells) {
      sum += cell.ttft_ms.*field;
      job_sum += cell.job_s.*field;
    }
    mean.ttft_ms.*field = sum / static_cast<double>(cells.size());
    mean.job_s.*field = job_sum / static_cast<double>(cells.size());
  }
  mean.requests = 0;
  mean.evictions = 0;
  for (const ReplayCell& cell : cells) {
    mean.requests += cell.requests;
    mean.evictions += cell.evictions;
  }
  return mean;
}

Result<ReplayCell> Replay(const Trace& trace, const ReplayOptions& options, const Clock& clock) {
  if (options.cache_blocks < 1 || options.cache_blocks >= std::numeric_limits<int32_t>::max()) {
    return Err(ErrorCode::kInvalidInput, "cache of %d blocks: give at least 1",
               options.cache_blocks);
  }
  const auto named = [&](ReplayCell cell) {
    cell.trace = trace.name;
    cell.policy = options.policy.name;
    cell.cache_blocks = options.cache_blocks;
    return cell;
  };
  if (options.policy.name == "bound") {
    return named(BoundCell(trace, options));
  }
  const auto offline = OfflinePolicyNames();
  if (options.queue && IsClosedLoop(trace) &&
      std::find(offline.begin(), offline.end(), kv::WithoutOverlays(options.policy.name)) !=
          offline.end()) {
    return Err(ErrorCode::kUnsupported,
               "policy \"%s\" must know the order of requests, which the queue decides where turns "
               "wait for answers: leave it out, or the queue",
               options.policy.name.c_str());
  }
  kv::CacheOptions cache_options;
  cache_options.num_blocks = options.cache_blocks + 1;
  cache_options.block_size_tokens = trace.block_size_tokens;
  kv::PolicyOptions policy_options = options.policy;
  policy_options.num_blocks = cache_options.num_blocks;
  policy_options.block_size_tokens = cache_options.block_size_tokens;
  policy_options.obey_clients = options.hint_accuracy >= 0;
  Future future(trace);
  KVIK_ASSIGN(auto policy, MakeReplayPolicy(policy_options, future));
  KVIK_TRY(policy->RestoreState(options.policy_state));
  if (options.wrap) {
    policy = options.wrap(std::move(policy));
  }
  KVIK_ASSIGN(const auto cache, kv::KvCache::Create(cache_options, std::move(policy)));
  Driver driver(trace, options, *cache, future, clock);
  if (options.queue) {
    driver.RunQueue();
  } else {
    driver.Run();
  }
  if (options.at_end) {
    options.at_end(cache->policy());
  }

  const Totals& totals = driver.totals();
  const auto requests = static_cast<double>(std::max<int64_t>(totals.requests, 1));
  const Distribution segments = Describe(totals.segments);
  ReplayCell cell;
  cell.requests = totals.requests;
  cell.block_hit_pct =
      Percent(static_cast<double>(totals.hit_blocks), static_cast<double>(totals.blocks));
  cell.prefix_hit_pct =
      Percent(static_cast<double>(totals.prefix_blocks), static_cast<double>(totals.blocks));
  cell.request_hit_pct = Percent(static_cast<double>(totals.hit_requests), requests);
  cell.miss_cost_pct = Percent(totals.missed_us, totals.cost_us);
  cell.segments_mean = segments.mean;
  cell.segments_p99 = segments.p99;
  cell.us_per_request = static_cast<double>(totals.clock_us) / requests;
  cell.evictions = cache->stats().evictions;
  cell.has_ttft = options.queue;
  cell.ttft_ms = Describe(totals.ttft_ms);
  cell.has_job = options.queue && std::any_of(trace.requests.begin(), trace.requests.end(),
                                              [](const TraceRequest& r) { return r.tool_call; });
  cell.job_s = Describe(totals.job_s);
  return named(std::move(cell));
}

}  // namespace kvik::workload
