// SPDX-License-Identifier: Apache-2.0
// server/generation.h: one HTTP request in the engine: all its prompts and choices.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/bounded_queue.h"
#include "base/clock.h"
#include "server/api_error.h"
#include "server/choice.h"
#include "server/engine_client.h"
#include "server/openai_response.h"
#include "server/prompt.h"
#include "server/server_metrics.h"

namespace kvik::server {

// What happened to one choice.
struct GenerationEvent {
  int32_t choice = 0;  // prompt index * n + which of the n
  ChoiceDelta delta;
};

// What a request says about KV, with the server's defaults filled in.
struct KvTerms {
  kv::MinQuality quality;
  std::string workload;
  int64_t slo_ttft_us = 0;
  int64_t slo_us = 0;
  std::shared_ptr<const kv::TransferParams> transfer;  // may be null
};

// Owned by one thread; the engine's sinks only reach its queue, which outlives both.
class Generation {
 public:
  // Submits every choice. Context limits are checked here, so that too long a prompt is an error
  // before anything runs. References must outlive the generation.
  static ApiResult<std::unique_ptr<Generation>> Start(
      EngineClient& engine, const PromptBuilder& builder, ServerMetrics& metrics,
      const Clock& clock, const std::vector<std::vector<TokenId>>& prompts,
      const GenerationParams& params, const KvTerms& kv);
  // Aborts what still runs.
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  // Waits at most `patience` for the next events. Empty = nothing happened yet. An error ends the
  // whole request.
  ApiResult<std::vector<GenerationEvent>> Next(std::chrono::microseconds patience);
  [[nodiscard]] bool finished() const { return unfinished_ == 0; }
  // After `finished`: what the engine tells at a request's end may come a step after its text ended
  // at a stop string. Waits for it, not for long.
  void Settle();

  [[nodiscard]] ReplyUsage usage() const;
  [[nodiscard]] KvReport report() const;
  [[nodiscard]] int32_t num_choices() const { return static_cast<int32_t>(running_.size()); }

 private:
  struct Arrival {
    int32_t choice = 0;
    engine::RequestOutput output;
    int64_t time_us = 0;
  };
  using Queue = BoundedQueue<Arrival>;

  struct Running {
    engine::RequestId id = 0;
    Choice text;
    engine::Usage usage;
    engine::Timing timing;
    std::shared_ptr<const kv::TransferReport> transfer;
    bool engine_done = false;
    bool aborted = false;
    int64_t last_token_us = 0;
  };

  Generation(EngineClient& engine, ServerMetrics& metrics, int32_t n);
  void Observe(const Arrival& arrival);
  void NoteEnd(Running& running, const engine::RequestOutput& output);

  EngineClient& engine_;
  ServerMetrics& metrics_;
  int32_t n_;
  std::shared_ptr<Queue> queue_;
  std::vector<Running> running_;
  int32_t unfinished_ = 0;
};

}  // namespace kvik::server
