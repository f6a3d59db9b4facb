// SPDX-License-Identifier: Apache-2.0
#include "workload/replay.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

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
  int64_t clock_us = 0;
};

size_t FirstMeasured(const Trace& trace, const ReplayOptions& options) {
  return static_cast<size_t>(static_cast<double>(trace.requests.size()) * options.warmup_share);
}

double Percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

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
      : trace_(trace), options_(options), cache_(cache), future_(future), clock_(clock) {}

  void Run() {
    const auto first_measured =
        static_cast<size_t>(static_cast<double>(trace_.requests.size()) * options_.warmup_share);
    for (size_t i = 0; i < trace_.requests.size(); ++i) {
      Serve(i, i >= first_measured);
    }
  }

  [[nodiscard]] const Totals& totals() const { return totals_; }

 private:
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
    return sequence;
  }

  void Serve(size_t index, bool measured) {
    const TraceRequest& request = trace_.requests[index];
    kv::Sequence sequence = MakeSequence(index);
    future_.SetNow(static_cast<int64_t>(index));

    const int64_t start_us = clock_.NowMicros();
    cache_.AdvanceTime(request.arrival_us);
    const kv::AdmissionPlan plan = cache_.Plan(sequence, sequence.num_tokens());
    // Larger than the whole cache: computed and not kept.
    const bool fits = cache_.Admit(sequence, plan) == kv::AdmitOutcome::kAdmitted;
    const std::vector<kv::ResidentRun> hits =
        fits ? sequence.hit_runs() : std::vector<kv::ResidentRun>{};
    if (fits) {
      const auto runs = sequence.NextRuns(sequence.num_tokens());
      cache_.Allocate(sequence, runs);
      cache_.Commit(sequence, runs);
      sequence.facts().output_tokens = request.output_tokens;
      cache_.Release(sequence);
    }
    const int64_t end_us = clock_.NowMicros();
    if (measured) {
      Count(request, hits, end_us - start_us);
    }
    if (options_.observe) {
      options_.observe(RequestOutcome{index, measured, hits});
    }
  }

  void Count(const TraceRequest& request, const std::vector<kv::ResidentRun>& hits,
             int64_t clock_us) {
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
    totals_.missed_us += missed_us;
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
  kv::CacheOptions cache_options;
  cache_options.num_blocks = options.cache_blocks + 1;
  cache_options.block_size_tokens = trace.block_size_tokens;
  kv::PolicyOptions policy_options = options.policy;
  policy_options.num_blocks = cache_options.num_blocks;
  policy_options.block_size_tokens = cache_options.block_size_tokens;
  Future future(trace);
  KVIK_ASSIGN(auto policy, MakeReplayPolicy(policy_options, future));
  if (options.wrap) {
    policy = options.wrap(std::move(policy));
  }
  KVIK_ASSIGN(const auto cache, kv::KvCache::Create(cache_options, std::move(policy)));
  Driver driver(trace, options, *cache, future, clock);
  driver.Run();

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
  return named(std::move(cell));
}

}  // namespace kvik::workload
