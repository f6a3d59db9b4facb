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
  explicit Impl(const std::string& model_name)
      : labels({{"engine", "0"}, {"model_name", model_name}}) {}

  Follower Follow(const char* name, const char* help, const Labels& with) {
    return Follower{&registry.AddCounter(name, help, with), 0};
  }
  Histogram* MakeHistogram(const char* name, const char* help, const std::vector<double>& bounds) {
    return &registry.AddHistogram(name, help, bounds, labels);
  }

  MetricsRegistry registry;
  const Labels labels;

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

  Histogram* first_token = MakeHistogram("vllm:time_to_first_token_seconds",
                                         "From arrival to the first token.", FirstTokenBounds());
  Histogram* inter_token = MakeHistogram("vllm:inter_token_latency_seconds",
                                         "Between two tokens of a request.", TokenGapBounds());
  Histogram* per_output_token =
      MakeHistogram("vllm:request_time_per_output_token_seconds",
                    "Mean time per token after the first, by request.", TokenGapBounds());
  Histogram* end_to_end = MakeHistogram("vllm:e2e_request_latency_seconds",
                                        "From arrival to the end.", RequestSecondsBounds());
  Histogram* queue_time = MakeHistogram("vllm:request_queue_time_seconds",
                                        "From arrival to the first step.", RequestSecondsBounds());
  Histogram* prefill_time =
      MakeHistogram("vllm:request_prefill_time_seconds", "From the first step to the first token.",
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
      MakeHistogram("vllm:request_prefill_kv_computed_tokens",
                    "Prompt tokens of a request that were not cached.", OneTwoFive(200'000));
  Histogram* max_tokens_of_request = MakeHistogram(
      "vllm:request_params_max_tokens", "The max_tokens of a request.", OneTwoFive(200'000));
  Histogram* n_of_request =
      MakeHistogram("vllm:request_params_n", "The n of a request.", {1, 2, 5, 10, 20});
  Histogram* segments_of_request =
      MakeHistogram("kvik:request_cached_segments", "Runs of cached blocks a request reused.",
                    {0, 1, 2, 3, 4, 8, 16, 32, 64});

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
  Follower prompt_tokens_cached KVIK_GUARDED_BY(mutex) =
      Follow("vllm:prompt_tokens_cached_total", "Prompt tokens whose KV was in the cache.", labels);
  Follower prompt_tokens_recomputed KVIK_GUARDED_BY(mutex) = Follow(
      "vllm:prompt_tokens_recomputed_total", "Tokens computed again after a preemption.", labels);
  Follower preemptions KVIK_GUARDED_BY(mutex) = Follow("vllm:num_preemptions_total",
                                                       "Requests that gave their blocks back.",
                                                       labels);
  Follower evictions KVIK_GUARDED_BY(mutex) = Follow("kvik:evictions_total",
                                                     "Cached KV blocks dropped to make room.",
                                                     labels);
  Follower rejections KVIK_GUARDED_BY(mutex) = Follow("kvik:requests_rejected_total",
                                                      "Requests the engine refused.", labels);
  std::map<std::string, Counter*> finished;
};

ServerMetrics::ServerMetrics(const std::string& model_name,
                             const std::map<std::string, std::string>& cache_config)
    : impl_(std::make_unique<Impl>(model_name)) {
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
  impl_->computed_tokens_of_request->Observe(usage.prompt_tokens - usage.cached_tokens);
  impl_->segments_of_request->Observe(usage.cached_segments);
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
    impl_->prompt_tokens_cached.Set(as_double(stats.prompt_tokens_cached));
    impl_->prompt_tokens_recomputed.Set(as_double(stats.scheduler.recomputed_tokens));
    impl_->preemptions.Set(as_double(stats.scheduler.preemptions));
    impl_->evictions.Set(as_double(stats.cache.evictions));
    impl_->rejections.Set(as_double(stats.rejected));
  }
  return impl_->registry.Render();
}

}  // namespace kvik::server
