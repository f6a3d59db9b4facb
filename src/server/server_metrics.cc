// SPDX-License-Identifier: Apache-2.0
#include "server/server_metrics.h"

#include <algorithm>
#include <vector>

namespace kvik::server {
namespace {

using Labels = MetricsRegistry::Labels;

Labels With(Labels labels, const std::string& key, const std::string& value) {
  labels[key] = value;
  return labels;
}

// 1, 2, 5, 10, 20, 50, ... up to `last`.
std::vector<double> OneTwoFive(double last) {
  std::vector<double> bounds;
  for (double decade = 1; decade <= last; decade *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) {
      if (decade * step <= last) {
        bounds.push_back(decade * step);
      }
    }
  }
  return bounds;
}

const std::vector<double>& FirstTokenBounds() {
  static const std::vector<double> bounds = {0.001, 0.005, 0.01, 0.02,  0.04,  0.06,  0.08, 0.1,
                                             0.25,  0.5,   0.75, 1.0,   2.5,   5.0,   7.5,  10.0,
                                             20.0,  40.0,  80.0, 160.0, 640.0, 2560.0};
  return bounds;
}
const std::vector<double>& TokenGapBounds() {
  static const std::vector<double> bounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,
                                             0.15,  0.2,    0.3,   0.4,  0.5,   0.75, 1.0,   2.5,
                                             5.0,   7.5,    10.0,  20.0, 40.0,  80.0};
  return bounds;
}
const std::vector<double>& RequestSecondsBounds() {
  static const std::vector<double> bounds = {0.01, 0.05, 0.1,  0.3,  0.5,  0.8,   1.0,   1.5,
                                             2.0,  2.5,  5.0,  10.0, 15.0, 20.0,  30.0,  40.0,
                                             50.0, 60.0, 120., 240., 480., 960.0, 1920., 7680.};
  return bounds;
}

const std::vector<double>& ControlPlaneBounds() {
  static const std::vector<double> bounds = {0.00001, 0.00002, 0.00005, 0.0001, 0.0002,
                                             0.0005,  0.001,   0.002,   0.005,  0.01,
                                             0.02,    0.05,    0.1,     0.2,    0.5};
  return bounds;
}
const std::vector<double>& ResidencyBounds() {
  static const std::vector<double> bounds = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1,
                                             0.2,   0.5,   1,     2,    5,    10,   20,
                                             30,    60,    120,   300,  600,  1200, 1800};
  return bounds;
}

double Seconds(int64_t micros) { return static_cast<double>(micros) * 1e-6; }

// A counter that follows a total kept elsewhere. Totals only grow.
struct Follower {
  Counter* counter = nullptr;
  double seen = 0;
  void Set(double total) {
    counter->Add(std::max(0.0, total - seen));
    seen = std::max(seen, total);
  }
};

}  // namespace

struct ServerMetrics::Impl {
  Impl(const std::string& model_name, const std::string& policy)
      : labels({{"engine", "0"}, {"model_name", model_name}}),
        policy_labels(With(labels, "policy", policy)) {}

  Follower Follow(const char* name, const char* help, const Labels& with) {
    return Follower{&registry.AddCounter(name, help, with), 0};
  }
  Histogram* MakeHistogram(const char* name, const char* help, const std::vector<double>& bounds) {
    return &registry.AddHistogram(name, help, bounds, labels);
  }
  Histogram* ByPolicy(const char* name, const char* help, const std::vector<double>& bounds) {
    return &registry.AddHistogram(name, help, bounds, policy_labels);
  }
  void Show(const kv::PolicyReading& reading) KVIK_REQUIRES(mutex);

  MetricsRegistry registry;
  const Labels labels;
  const Labels policy_labels;

  Gauge* running =
      &registry.AddGauge("vllm:num_requests_running", "Requests in the batch.", labels);
  Gauge* waiting =
      &registry.AddGauge("vllm:num_requests_waiting", "Requests waiting to be run.", labels);
  Gauge* waiting_capacity =
      &registry.AddGauge("vllm:num_requests_waiting_by_reason", "Waiting requests by reason.",
                         With(labels, "reason", "capacity"));
  Gauge* waiting_deferred =
      &registry.AddGauge("vllm:num_requests_waiting_by_reason", "Waiting requests by reason.",
                         With(labels, "reason", "deferred"));
  Gauge* cache_usage = &registry.AddGauge("vllm:kv_cache_usage_perc",
                                          "Share of KV blocks held by requests; 1 is all.", labels);
  Gauge* free_blocks =
      &registry.AddGauge("kvik:kv_blocks", "KV blocks by state.", With(labels, "state", "free"));
  Gauge* filling_blocks =
      &registry.AddGauge("kvik:kv_blocks", "KV blocks by state.", With(labels, "state", "filling"));
  Gauge* referenced_blocks = &registry.AddGauge("kvik:kv_blocks", "KV blocks by state.",
                                                With(labels, "state", "referenced"));
  Gauge* cached_blocks =
      &registry.AddGauge("kvik:kv_blocks", "KV blocks by state.", With(labels, "state", "cached"));

  Histogram* first_token = ByPolicy("vllm:time_to_first_token_seconds",
                                    "From arrival to the first token.", FirstTokenBounds());
  Histogram* inter_token = ByPolicy("vllm:inter_token_latency_seconds",
                                    "Between two tokens of a request.", TokenGapBounds());
  Histogram* per_output_token =
      ByPolicy("vllm:request_time_per_output_token_seconds",
               "Mean time per token after the first, by request.", TokenGapBounds());
  Histogram* end_to_end = ByPolicy("vllm:e2e_request_latency_seconds", "From arrival to the end.",
                                   RequestSecondsBounds());
  Histogram* queue_time = ByPolicy("vllm:request_queue_time_seconds",
                                   "From arrival to the first step.", RequestSecondsBounds());
  Histogram* prefill_time =
      ByPolicy("vllm:request_prefill_time_seconds", "From the first step to the first token.",
               RequestSecondsBounds());
  Histogram* decode_time =
      MakeHistogram("vllm:request_decode_time_seconds", "From the first token to the last.",
                    RequestSecondsBounds());
  Histogram* inference_time =
      MakeHistogram("vllm:request_inference_time_seconds", "From the first step to the last token.",
                    RequestSecondsBounds());
  Histogram* iteration_tokens =
      MakeHistogram("vllm:iteration_tokens_total", "Tokens computed in a step.",
                    {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384});
  Histogram* prompt_tokens_of_request = MakeHistogram(
      "vllm:request_prompt_tokens", "Prompt tokens of a request.", OneTwoFive(200'000));
  Histogram* generation_tokens_of_request = MakeHistogram(
      "vllm:request_generation_tokens", "Generated tokens of a request.", OneTwoFive(200'000));
  Histogram* computed_tokens_of_request =
      ByPolicy("vllm:request_prefill_kv_computed_tokens",
               "Prompt tokens of a request that were not cached.", OneTwoFive(200'000));
  Histogram* max_tokens_of_request = MakeHistogram(
      "vllm:request_params_max_tokens", "The max_tokens of a request.", OneTwoFive(200'000));
  Histogram* n_of_request =
      MakeHistogram("vllm:request_params_n", "The n of a request.", {1, 2, 5, 10, 20});
  Histogram* segments_of_request =
      ByPolicy("kvik:request_cached_segments", "Runs of cached blocks a request reused.",
               {0, 1, 2, 3, 4, 8, 16, 32, 64});
  Histogram* control_plane = ByPolicy(
      "kvik:control_plane_seconds",
      "What cache and scheduler did for a request: lookup, pins, choice of victims, publication.",
      ControlPlaneBounds());
  Histogram* reuse_gap =
      ByPolicy("vllm:kv_block_reuse_gap_seconds", "Between two uses of a cached block, sampled.",
               ResidencyBounds());
  Histogram* lifetime =
      ByPolicy("vllm:kv_block_lifetime_seconds",
               "From publication of a block to its eviction, sampled.", ResidencyBounds());
  Histogram* idle_before_evict =
      ByPolicy("vllm:kv_block_idle_before_evict_seconds",
               "From the last use of a block to its eviction, sampled.", ResidencyBounds());

  Histogram* transfer_time =
      MakeHistogram("vllm:nixl_xfer_time_seconds", "Until the KV of a request had come.",
                    {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30});
  Histogram* transfer_bytes =
      MakeHistogram("vllm:nixl_bytes_transferred", "On the wire, of the KV of a request.",
                    {1e4, 1e5, 1e6, 2e6, 5e6, 1e7, 2e7, 5e7, 1e8, 2e8, 5e8, 1e9, 1e10});

  Mutex mutex;  // of the followers
  Follower prefix_queries KVIK_GUARDED_BY(mutex) = Follow(
      "vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", labels);
  Follower prefix_hits KVIK_GUARDED_BY(mutex) = Follow("vllm:prefix_cache_hits_total",
                                                       "Prompt tokens found in the prefix cache.",
                                                       labels);
  Follower prompt_tokens KVIK_GUARDED_BY(mutex) = Follow("vllm:prompt_tokens_total",
                                                         "Prompt tokens of requests.", labels);
  Follower generation_tokens KVIK_GUARDED_BY(mutex) = Follow("vllm:generation_tokens_total",
                                                             "Tokens generated.", labels);
  Follower local_compute KVIK_GUARDED_BY(mutex) =
      Follow("vllm:prompt_tokens_by_source_total", "Prompt tokens by where their KV came from.",
             With(labels, "source", "local_compute"));
  Follower local_cache_hit KVIK_GUARDED_BY(mutex) =
      Follow("vllm:prompt_tokens_by_source_total", "Prompt tokens by where their KV came from.",
             With(labels, "source", "local_cache_hit"));
  Follower external_transfer KVIK_GUARDED_BY(mutex) =
      Follow("vllm:prompt_tokens_by_source_total", "Prompt tokens by where their KV came from.",
             With(labels, "source", "external_kv_transfer"));
  Follower external_queries KVIK_GUARDED_BY(mutex) =
      Follow("vllm:external_prefix_cache_queries_total",
             "Prompt tokens that were not in the cache and looked for elsewhere.", labels);
  Follower external_hits KVIK_GUARDED_BY(mutex) =
      Follow("vllm:external_prefix_cache_hits_total", "Prompt tokens whose KV came from elsewhere.",
             labels);
  Follower prompt_tokens_cached KVIK_GUARDED_BY(mutex) =
      Follow("vllm:prompt_tokens_cached_total",
             "Prompt tokens whose KV was in the cache or loaded.", labels);
  Follower prompt_tokens_recomputed KVIK_GUARDED_BY(mutex) = Follow(
      "vllm:prompt_tokens_recomputed_total", "Tokens computed again after a preemption.", labels);
  Follower preemptions KVIK_GUARDED_BY(mutex) = Follow("vllm:num_preemptions_total",
                                                       "Requests that gave their blocks back.",
                                                       labels);
  Follower evictions KVIK_GUARDED_BY(mutex) = Follow("kvik:evictions_total",
                                                     "Cached KV blocks dropped to make room.",
                                                     policy_labels);
  Follower block_queries KVIK_GUARDED_BY(mutex) = Follow("kvik:cache_block_queries_total",
                                                         "Full blocks of prompts.", policy_labels);
  Follower block_hits KVIK_GUARDED_BY(mutex) = Follow("kvik:cache_block_hits_total",
                                                      "Full blocks of prompts that were cached.",
                                                      policy_labels);
  Follower prompts KVIK_GUARDED_BY(mutex) = Follow("kvik:requests_prefilled_total",
                                                   "Requests whose prompt was computed.",
                                                   policy_labels);
  Follower prompts_with_hit KVIK_GUARDED_BY(mutex) = Follow("kvik:requests_with_hit_total",
                                                            "Of which some block was cached.",
                                                            policy_labels);
  Follower prefix_tokens KVIK_GUARDED_BY(mutex) = Follow(
      "kvik:prefix_hit_tokens_total",
      "Prompt tokens cached in the run from position 0, which is all that prefix caches use.",
      policy_labels);
  Follower no_cache_cost KVIK_GUARDED_BY(mutex) = Follow(
      "kvik:no_cache_cost_seconds_total",
      "Time to compute all prompts without a cache, as the cost model predicts.", policy_labels);
  Follower miss_cost KVIK_GUARDED_BY(mutex) = Follow(
      "kvik:miss_cost_seconds_total",
      "Time to compute what was not cached of them, as the cost model predicts.", policy_labels);
  std::map<std::string, Follower> policy_counts KVIK_GUARDED_BY(mutex);  // by name and part
  Follower rejections KVIK_GUARDED_BY(mutex) = Follow("kvik:requests_rejected_total",
                                                      "Requests the engine refused.", labels);
  std::map<std::string, Counter*> finished;
};

void ServerMetrics::Impl::Show(const kv::PolicyReading& reading) {
  const std::string name = std::string("kvik:policy_") + reading.name;
  const std::string part = reading.part;
  const Labels with = part.empty() ? policy_labels : With(policy_labels, "part", part);
  if (reading.only_grows) {
    policy_counts.try_emplace(name + "/" + part, Follow(name.c_str(), reading.help, with))
        .first->second.Set(reading.value);
  } else {
    registry.AddGauge(name, reading.help, with).Set(reading.value);
  }
}

ServerMetrics::ServerMetrics(const std::string& model_name, const std::string& policy,
                             const std::map<std::string, std::string>& cache_config)
    : impl_(std::make_unique<Impl>(model_name, policy)) {
  for (const char* reason : {"stop", "length", "abort", "error"}) {
    impl_->finished[reason] =
        &impl_->registry.AddCounter("vllm:request_success_total", "Requests by how they ended.",
                                    With(impl_->labels, "finished_reason", reason));
  }
  Labels config = impl_->labels;
  config.insert(cache_config.begin(), cache_config.end());
  impl_->registry.AddGauge("vllm:cache_config_info", "The configuration of the KV cache.", config)
      .Set(1);
}

ServerMetrics::~ServerMetrics() = default;

void ServerMetrics::OnStep(const engine::StepReport& report) {
  if (report.num_tokens > 0) {
    impl_->iteration_tokens->Observe(report.num_tokens);
  }
  for (const kv::ResidencySample& sample : report.residency) {
    Histogram* const histogram = sample.event == kv::ResidencyEvent::kReuseGap ? impl_->reuse_gap
                                 : sample.event == kv::ResidencyEvent::kLifetime
                                     ? impl_->lifetime
                                     : impl_->idle_before_evict;
    histogram->Observe(Seconds(sample.duration_us));
  }
}

void ServerMetrics::OnStart(int32_t n, int32_t max_tokens) {
  impl_->n_of_request->Observe(n);
  impl_->max_tokens_of_request->Observe(max_tokens);
}

void ServerMetrics::OnInterToken(int64_t gap_us) { impl_->inter_token->Observe(Seconds(gap_us)); }

void ServerMetrics::OnFinish(const std::string& reason, const engine::Usage& usage,
                             int32_t completion_tokens, const engine::Timing& timing) {
  const auto counter = impl_->finished.find(reason);
  if (counter != impl_->finished.end()) {
    counter->second->Add();
  }
  if (timing.first_token_us == 0 || timing.finished_us == 0) {
    return;  // nothing was computed that latencies could tell of
  }
  impl_->prompt_tokens_of_request->Observe(usage.prompt_tokens);
  impl_->generation_tokens_of_request->Observe(completion_tokens);
  impl_->computed_tokens_of_request->Observe(usage.prompt_tokens - usage.cached_tokens -
                                             usage.external_tokens);
  impl_->segments_of_request->Observe(usage.cached_segments);
  impl_->control_plane->Observe(timing.control_us * 1e-6);
  impl_->first_token->Observe(Seconds(timing.first_token_us - timing.submitted_us));
  impl_->queue_time->Observe(Seconds(timing.scheduled_us - timing.submitted_us));
  impl_->prefill_time->Observe(Seconds(timing.first_token_us - timing.scheduled_us));
  impl_->decode_time->Observe(Seconds(timing.finished_us - timing.first_token_us));
  impl_->inference_time->Observe(Seconds(timing.finished_us - timing.scheduled_us));
  impl_->end_to_end->Observe(Seconds(timing.finished_us - timing.submitted_us));
  if (completion_tokens > 1) {
    impl_->per_output_token->Observe(Seconds(timing.finished_us - timing.first_token_us) /
                                     (completion_tokens - 1));
  }
}

void ServerMetrics::OnTransfer(const kv::TransferReport& report) {
  if (report.wire_bytes > 0) {
    impl_->transfer_time->Observe(Seconds(report.observed_us));
    impl_->transfer_bytes->Observe(static_cast<double>(report.wire_bytes));
  }
}

std::string ServerMetrics::Render(const engine::EngineStats& stats) {
  impl_->running->Set(stats.scheduler.running);
  impl_->waiting->Set(stats.scheduler.waiting);
  impl_->waiting_capacity->Set(stats.scheduler.waiting_for_capacity);
  impl_->waiting_deferred->Set(stats.scheduler.waiting - stats.scheduler.waiting_for_capacity);
  impl_->cache_usage->Set(stats.kv_cache_usage);
  impl_->free_blocks->Set(stats.cache.free_blocks);
  impl_->filling_blocks->Set(stats.cache.filling_blocks);
  impl_->referenced_blocks->Set(stats.cache.referenced_blocks);
  impl_->cached_blocks->Set(stats.cache.cached_blocks);
  {
    MutexLock lock(impl_->mutex);
    const auto as_double = [](int64_t count) { return static_cast<double>(count); };
    impl_->prefix_queries.Set(as_double(stats.scheduler.prefix_query_tokens));
    impl_->prefix_hits.Set(as_double(stats.scheduler.prefix_hit_tokens));
    impl_->prompt_tokens.Set(as_double(stats.prompt_tokens));
    impl_->generation_tokens.Set(as_double(stats.generation_tokens));
    impl_->local_compute.Set(as_double(stats.prompt_tokens_computed));
    impl_->local_cache_hit.Set(as_double(stats.prompt_tokens_cached));
    impl_->external_transfer.Set(as_double(stats.prompt_tokens_external));
    impl_->external_queries.Set(as_double(stats.exchange.query_tokens));
    impl_->external_hits.Set(as_double(stats.prompt_tokens_external));
    impl_->prompt_tokens_cached.Set(
        as_double(stats.prompt_tokens_cached + stats.prompt_tokens_external));
    impl_->prompt_tokens_recomputed.Set(as_double(stats.scheduler.recomputed_tokens));
    impl_->preemptions.Set(as_double(stats.scheduler.preemptions));
    impl_->evictions.Set(as_double(stats.cache.evictions));
    impl_->block_queries.Set(as_double(stats.prompt_blocks));
    impl_->block_hits.Set(as_double(stats.prompt_blocks_cached));
    impl_->prompts.Set(as_double(stats.prompts));
    impl_->prompts_with_hit.Set(as_double(stats.prompts_with_hit));
    impl_->prefix_tokens.Set(as_double(stats.prompt_tokens_prefix));
    impl_->no_cache_cost.Set(stats.no_cache_cost_us * 1e-6);
    impl_->miss_cost.Set(stats.miss_cost_us * 1e-6);
    for (const kv::PolicyReading& reading : stats.policy) {
      impl_->Show(reading);
    }
    impl_->rejections.Set(as_double(stats.rejected));
  }
  return impl_->registry.Render();
}

}  // namespace kvik::server
