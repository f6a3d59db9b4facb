// SPDX-License-Identifier: Apache-2.0
// server/server_metrics.h: what /metrics shows, under the names vLLM's dashboards know.
//
// Histograms are fed as things happen; counters and gauges that the engine keeps are copied from
// its statistics when they are asked for. What vLLM has no name for begins with "kvik:".
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/metrics.h"
#include "base/mutex.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "kv/connector.h"

namespace kvik::server {

// Thread-safe.
class ServerMetrics {
 public:
  // The labels of every metric are model_name and engine="0", and `policy` of those that the
  // eviction policy decides; `cache_config` becomes the labels of vllm:cache_config_info.
  ServerMetrics(const std::string& model_name, const std::string& policy,
                const std::map<std::string, std::string>& cache_config);
  ~ServerMetrics();

  // After each engine step; on the engine thread.
  void OnStep(const engine::StepReport& report);
  // A request was taken: its limits.
  void OnStart(int32_t n, int32_t max_tokens);
  // The time between two tokens of a request.
  void OnInterToken(int64_t gap_us);
  // A request ended. `reason`: "stop", "length", "abort" or "error".
  void OnFinish(const std::string& reason, const engine::Usage& usage, int32_t completion_tokens,
                const engine::Timing& timing);
  // KV of a request came from elsewhere, or was to come.
  void OnTransfer(const kv::TransferReport& report);

  // The text of /metrics.
  [[nodiscard]] std::string Render(const engine::EngineStats& stats);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvik::server
