// SPDX-License-Identifier: Apache-2.0
#include "server/generation.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "server/tool_name.h"

namespace kvik::server {
namespace {

ApiError TooLong(int64_t prompt_tokens, int64_t max_tokens, int32_t limit) {
  ApiError error;
  error.code = "context_length_exceeded";
  const std::string length = std::to_string(limit);
  if (prompt_tokens >= limit) {
    error.message = "This server's maximum context length is " + length +
                    " tokens, but your prompt has " + std::to_string(prompt_tokens) +
                    ", which leaves no room for an answer. Shorten the prompt.";
    error.param = "prompt";
  } else {
    error.message = "This server's maximum context length is " + length +
                    " tokens, but you asked for " + std::to_string(prompt_tokens + max_tokens) +
                    " (" + std::to_string(prompt_tokens) + " in the prompt, " +
                    std::to_string(max_tokens) +
                    " to generate). Shorten the prompt or lower "
                    "max_tokens.";
    error.param = "max_tokens";
  }
  return error;
}

ApiError NotAToken(const char* param, TokenId id, size_t vocab_size) {
  ApiError error;
  error.message = "Invalid value for '" + std::string(param) + "': " + std::to_string(id) +
                  " is not a token id of this model, which has " + std::to_string(vocab_size) +
                  " tokens.";
  error.param = param;
  return error;
}

// Ids the client named, against the vocabulary.
std::optional<ApiError> CheckIds(const std::vector<std::vector<TokenId>>& prompts,
                                 const GenerationParams& params, size_t vocab_size) {
  const auto bad = [&](TokenId id) { return id < 0 || static_cast<size_t>(id) >= vocab_size; };
  for (const std::vector<TokenId>& prompt : prompts) {
    const auto it = std::find_if(prompt.begin(), prompt.end(), bad);
    if (it != prompt.end()) {
      return NotAToken("prompt", *it, vocab_size);
    }
  }
  for (const TokenId id : params.stop_token_ids) {
    if (bad(id)) {
      return NotAToken("stop_token_ids", id, vocab_size);
    }
  }
  for (const TokenId id : params.forced_tokens) {
    if (bad(id)) {
      return NotAToken("kvik.forced_token_ids", id, vocab_size);
    }
  }
  for (const auto& [id, bias] : params.sampling.logit_bias) {
    if (bad(id)) {
      return NotAToken("logit_bias", id, vocab_size);
    }
  }
  return std::nullopt;
}

const char* FinishName(ChoiceFinish finish) {
  return finish == ChoiceFinish::kStop ? "stop" : "length";
}

}  // namespace

Generation::Generation(EngineClient& engine, ServerMetrics& metrics, int32_t n)
    : engine_(engine),
      metrics_(metrics),
      n_(n),
      queue_(std::make_shared<Queue>(std::numeric_limits<size_t>::max())) {}

Generation::~Generation() {
  for (Running& running : running_) {
    if (!running.engine_done && !running.aborted) {
      engine_.Abort(running.id);
    }
    if (!running.text.finished()) {
      metrics_.OnFinish("abort", running.usage, running.text.completion_tokens(), {});
    }
  }
}

ApiResult<std::unique_ptr<Generation>> Generation::Start(
    EngineClient& engine, const PromptBuilder& builder, ServerMetrics& metrics, const Clock& clock,
    const std::vector<std::vector<TokenId>>& prompts, const GenerationParams& params,
    const KvTerms& kv) {
  const text::Tokenizer& tokenizer = builder.tokenizer();
  if (std::optional<ApiError> error = CheckIds(prompts, params, tokenizer.vocab_size())) {
    return *std::move(error);
  }
  const int32_t limit = engine.max_request_tokens();
  for (const std::vector<TokenId>& prompt : prompts) {
    if (prompt.empty()) {
      ApiError error;
      error.message = "The prompt has no tokens.";
      error.param = "prompt";
      return error;
    }
    const auto length = static_cast<int64_t>(prompt.size());
    if (length >= limit || length + params.max_tokens.value_or(0) > limit) {
      return TooLong(length, params.max_tokens.value_or(0), limit);
    }
  }
  std::unique_ptr<Generation> generation(new Generation(engine, metrics, params.n));
  generation->running_.reserve(prompts.size() * static_cast<size_t>(params.n));
  for (const std::vector<TokenId>& prompt : prompts) {
    for (int32_t i = 0; i < params.n; ++i) {
      engine::Request request;
      request.prompt = prompt;
      request.sampling = params.sampling;
      if (request.sampling.seed) {
        *request.sampling.seed += static_cast<uint64_t>(i);
      }
      request.max_new_tokens =
          params.max_tokens.value_or(limit - static_cast<int32_t>(prompt.size()));
      request.min_new_tokens = std::min(params.min_tokens, request.max_new_tokens);
      request.stop_token_ids = params.stop_token_ids;
      if (!params.ignore_eos) {
        const auto ends = tokenizer.end_ids();
        request.stop_token_ids.insert(request.stop_token_ids.end(), ends.begin(), ends.end());
      }
      request.priority = params.priority;
      request.cache_salt = params.cache_salt;
      request.forced_tokens = params.forced_tokens;
      request.session = params.session;
      request.will_continue = params.will_continue;
      request.retention = params.retention;
      request.quality = kv.quality;
      request.workload = kv.workload;
      request.slo_ttft_us = kv.slo_ttft_us;
      request.slo_us = kv.slo_us;
      request.transfer = kv.transfer;
      request.tool_of_call = [&tokenizer](std::span<const TokenId> call) {
        return ToolDigest(tokenizer, call);
      };
      request.tool_call_markers = builder.tool_call_markers();
      const int32_t max_new_tokens = request.max_new_tokens;
      const auto choice = static_cast<int32_t>(generation->running_.size());
      Result<engine::RequestId> id =
          engine.Submit(std::move(request),
                        [queue = generation->queue_, choice, &clock](engine::RequestOutput output) {
                          Arrival arrival{choice, std::move(output), clock.NowMicros()};
                          queue->TryPush(arrival);
                        });
      if (!id) {
        return FromError(id.error());
      }
      generation->running_.push_back(
          Running{*id, Choice(tokenizer, params), {}, {}, nullptr, false, false, 0});
      ++generation->unfinished_;
      metrics.OnStart(params.n, max_new_tokens);
    }
  }
  return generation;
}

void Generation::Observe(const Arrival& arrival) {
  Running& running = running_[static_cast<size_t>(arrival.choice)];
  running.usage = arrival.output.usage;
  if (arrival.output.tokens.empty()) {
    return;
  }
  if (running.last_token_us != 0) {
    metrics_.OnInterToken(arrival.time_us - running.last_token_us);
  }
  running.last_token_us = arrival.time_us;
}

ApiResult<std::vector<GenerationEvent>> Generation::Next(std::chrono::microseconds patience) {
  std::vector<GenerationEvent> events;
  std::optional<Arrival> first = queue_->PopFor(patience);
  if (!first) {
    return events;
  }
  std::vector<Arrival> arrivals = queue_->TakeAll();
  arrivals.insert(arrivals.begin(), *std::move(first));
  for (Arrival& arrival : arrivals) {
    Running& running = running_[static_cast<size_t>(arrival.choice)];
    const std::optional<engine::FinishReason> finish = arrival.output.finish;
    if (finish) {
      NoteEnd(running, arrival.output);
    }
    if (running.text.finished()) {
      continue;  // sampled before the engine heard of the stop string
    }
    if (finish == engine::FinishReason::kError || finish == engine::FinishReason::kCancelled) {
      if (finish == engine::FinishReason::kError && arrival.output.error) {
        return FromError(*arrival.output.error);
      }
      return FromError(Err(ErrorCode::kUnavailable, "The server is shutting down."));
    }
    Observe(arrival);
    GenerationEvent event{arrival.choice, running.text.Push(arrival.output)};
    if (event.delta.finish) {
      --unfinished_;
      if (!finish) {
        engine_.Abort(running.id);
        running.aborted = true;
      }
      running.timing = arrival.output.timing;
      running.timing.finished_us = arrival.time_us;
      metrics_.OnFinish(FinishName(*event.delta.finish), running.usage,
                        running.text.completion_tokens(), running.timing);
    }
    events.push_back(std::move(event));
  }
  return events;
}

void Generation::NoteEnd(Running& running, const engine::RequestOutput& output) {
  running.engine_done = true;
  running.transfer = output.transfer;
  if (running.transfer != nullptr) {
    metrics_.OnTransfer(*running.transfer);
  }
}

void Generation::Settle() {
  constexpr std::chrono::milliseconds kPatience{500};  // a step
  const auto waits = [&] {
    return std::any_of(running_.begin(), running_.end(), [](const Running& running) {
      return !running.engine_done && running.usage.external_tokens > 0;
    });
  };
  while (waits()) {
    std::optional<Arrival> arrival = queue_->PopFor(kPatience);
    if (!arrival) {
      return;
    }
    Running& running = running_[static_cast<size_t>(arrival->choice)];
    if (arrival->output.finish) {
      NoteEnd(running, arrival->output);
    }
  }
}

KvReport Generation::report() const {
  KvReport report;
  report.timing = running_.front().timing;
  for (const Running& running : running_) {
    report.quality = std::min(report.quality, running.usage.least_q);
    if (report.transfer == nullptr) {
      report.transfer = running.transfer;
    }
  }
  return report;
}

ReplyUsage Generation::usage() const {
  ReplyUsage total;
  for (size_t i = 0; i < running_.size(); ++i) {
    const Running& running = running_[i];
    total.completion_tokens += running.text.completion_tokens();
    if (i % static_cast<size_t>(n_) == 0) {  // a prompt counts once, however many its choices
      total.prompt_tokens += running.usage.prompt_tokens;
      total.cached_tokens += running.usage.cached_tokens;
      total.prefix_tokens += running.usage.prefix_tokens;
      total.cached_segments += running.usage.cached_segments;
      total.external_tokens += running.usage.external_tokens;
    }
  }
  return total;
}

}  // namespace kvik::server
