// SPDX-License-Identifier: Apache-2.0
// engine/request.h: the native types that cross the queue between front ends and the engine.
// No JSON and no text here: front ends parse, template, tokenise and detokenise.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "kv/block_key.h"
#include "kv/connector.h"
#include "kv/retention.h"
#include "model/sampling_params.h"

namespace kvik::engine {

using RequestId = uint64_t;  // chosen by EngineLoop / Engine on submission, never reused

struct Request {
  std::vector<TokenId> prompt;  // not empty
  model::SamplingParams sampling;
  int32_t max_new_tokens = 16;          // >= 1; the engine clips to max_model_len - prompt size
  int32_t min_new_tokens = 0;           // stop tokens are not sampled before
  std::vector<TokenId> stop_token_ids;  // generation ends with (and includes) one of these
  bool ignore_stop_tokens = false;
  int32_t priority = 0;    // lower runs first, as in vLLM
  std::string cache_salt;  // separates the cache between tenants; part of the block hash
  std::string adapter;     // reserved name space of adapters; part of the block hash
  // The first generated tokens, whatever the model says: logits are computed as ever, then the
  // token is overwritten. So runs with different caches do equal work. At most max_new_tokens.
  std::vector<TokenId> forced_tokens;
  // For the eviction policy. 0: the session is unknown.
  uint64_t session = 0;
  std::optional<bool> will_continue;  // whether the client says that the session goes on
  // Token sequences, any of which in the answer says that it calls a tool: such sessions come back
  // sooner. Shared by all requests of a front end.
  std::shared_ptr<const std::vector<std::vector<TokenId>>> tool_call_markers;
  // Which tool, from the first tokens of the answer behind a marker: a digest of its name, 0 if
  // they do not say. Called on the engine thread, once at most; may be empty.
  std::function<uint64_t(std::span<const TokenId> call)> tool_of_call;
  // How much the client wants which part of the KV kept; may be null. kv::ValidateRetention holds.
  std::shared_ptr<const kv::Retention> retention;
  // The least quality of KV it may read. The default is exact: the answer is what it would be
  // without a cache. Its workload is set by Engine::Submit, from the label below.
  kv::MinQuality quality;
  // For whoever brings KV from elsewhere (kv/connector.h).
  std::string workload;     // label of the kind of work; empty: not known
  int64_t slo_ttft_us = 0;  // to the first token, from submission; 0: none
  int64_t slo_us = 0;       // to the last token
  std::shared_ptr<const kv::TransferParams> transfer;  // may be null
};

enum class FinishReason {
  kStop,       // a stop token was sampled
  kLength,     // max_new_tokens or max_model_len reached
  kCancelled,  // aborted by the client or by the front end (a stop string was found)
  kError,      // `error` says why: the step of the request failed
};

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
};

// One sampled token.
struct TokenOutput {
  TokenId token = 0;
  float logprob = 0;              // of `token`; set when logprobs were asked for
  std::vector<TokenLogprob> top;  // the most probable ones, descending; as many as asked for
};

// Of the prompt: computed tokens + cached_tokens + external_tokens = prompt_tokens.
struct Usage {
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;
  int32_t cached_tokens = 0;    // prompt tokens whose KV was reused, over all segments
  int32_t prefix_tokens = 0;    // of which in the first run, from position 0
  int32_t cached_segments = 0;  // maximal runs of reused blocks
  int32_t external_tokens = 0;  // prompt tokens whose KV came from elsewhere
  int32_t external_blocks = 0;
  float least_q = 1.0F;  // of all KV that the answer was computed from; 1 when all of it was exact
  int32_t preemptions = 0;
};

// Microseconds of the engine's clock; 0 = has not happened.
struct Timing {
  int64_t submitted_us = 0;
  int64_t scheduled_us = 0;  // let in: it computes, or waits for KV that is being loaded
  int64_t first_token_us = 0;
  int64_t finished_us = 0;
  // No point in time: the request's share of what cache and scheduler did in its steps (lookup,
  // pins, choice of victims, publication), and its release.
  double control_us = 0;
};

// What the engine tells about a request after a step: zero or more new tokens, and at the end
// exactly one output with finish set.
struct RequestOutput {
  RequestId id = 0;
  std::vector<TokenOutput> tokens;
  std::optional<FinishReason> finish;
  std::optional<Error> error;  // with FinishReason::kError
  Usage usage;                 // so far
  Timing timing;
  // With finish, if KV was moved for the request; else null.
  std::shared_ptr<const kv::TransferReport> transfer;
};

// Called on the engine thread; must not block (push to a queue and return) and must own or share
// what it captures: the call may still be returning when another thread has read the output.
using OutputSink = std::function<void(RequestOutput)>;

}  // namespace kvik::engine
