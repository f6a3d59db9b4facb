// SPDX-License-Identifier: Apache-2.0
#include "server/openai_server.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <utility>

#include "base/host_port.h"
#include "base/log.h"
#include "base/rng.h"
#include "events/wire.h"
#include "server/api_key.h"
#include "server/generation.h"
#include "server/sse.h"
#include "text/detokenizer.h"

namespace kvik::server {
namespace {

// How long a client may be gone before its request is aborted, while no token comes.
constexpr std::chrono::milliseconds kClientCheckInterval{100};
constexpr int32_t kDefaultCompletionTokens = 16;  // OpenAI's

HttpResponse ErrorResponse(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = FormatError(error);
  return response;
}

HttpResponse JsonResponse(std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  return response;
}

ApiError Unavailable(const char* message) {
  return FromError(Error{ErrorCode::kUnavailable, message});
}

}  // namespace

// A parsed and tokenised request, ready to run.
struct OpenAiServer::Job {
  ReplyKind kind = ReplyKind::kChat;
  ReplyHead head;
  GenerationParams params;
  std::vector<std::string> echoes;         // [prompts], or empty: text before each answer
  std::optional<TransferFields> returned;  // kv_transfer_params of the reply
  std::unique_ptr<Generation> generation;

  [[nodiscard]] std::string EchoOf(int32_t choice) const {
    return echoes.empty() ? "" : echoes[static_cast<size_t>(choice / params.n)];
  }
};

OpenAiServer::OpenAiServer(OpenAiServerOptions options, EngineClient& engine,
                           const PromptBuilder& prompts, ServerMetrics& metrics, const Clock& clock)
    : options_(std::move(options)),
      hasher_(options_.hash ? std::optional<kv::BlockHasher>(*options_.hash) : std::nullopt),
      engine_(engine),
      prompts_(prompts),
      metrics_(metrics),
      clock_(clock),
      started_s_(options_.unix_seconds()) {}

std::string OpenAiServer::TransportError(int status) {
  ApiError error;
  error.status = status;
  switch (status) {
    case 404:
      error.message = "There is no such endpoint.";
      error.code = "not_found";
      break;
    case 413:
      error.message = "The request body is too large.";
      error.code = "request_too_large";
      break;
    case 414:
      error.message = "The request target is too long.";
      break;
    default:
      error.message =
          status >= 500 ? "The server failed to answer." : "The request is not acceptable HTTP.";
      error.type = status >= 500 ? "internal_error" : "invalid_request_error";
  }
  return FormatError(error);
}

HttpResponse OpenAiServer::Handle(const HttpRequest& request) {
  try {
    return Route(request);
  } catch (const std::exception& e) {  // bad_alloc at best; one request must not end the server
    LogError("%s %s: %s", request.method.c_str(), request.path.c_str(), e.what());
    return ErrorResponse(FromError(Err(ErrorCode::kInternal, "The request failed: %s", e.what())));
  }
}

HttpResponse OpenAiServer::Route(const HttpRequest& request) {
  struct Endpoint {
    const char* method;
    const char* path;
    bool open;  // without an API key
    std::function<HttpResponse()> handler;
  };
  const auto empty = [] { return JsonResponse(""); };
  const Endpoint endpoints[] = {
      {"GET", "/health", true, [&] { return Health(); }},
      {"GET", "/ping", true, empty},
      {"POST", "/ping", true, empty},
      {"GET", "/version", true, [&] { return JsonResponse(FormatVersion(options_.version)); }},
      {"GET", "/metrics", true,
       [&] {
         std::string text = metrics_.Render(engine_.stats());
         if (options_.more_metrics) {
           text += options_.more_metrics();
         }
         HttpResponse response = JsonResponse(std::move(text));
         response.content_type = "text/plain; version=0.0.4; charset=utf-8";
         return response;
       }},
      {"GET", "/v1/models", false, [&] { return Models(request); }},
      {"POST", "/v1/chat/completions", false, [&] { return ChatCompletions(request); }},
      {"POST", "/v1/completions", false, [&] { return Completions(request); }},
      {"POST", "/tokenize", false, [&] { return Tokenize(request); }},
      {"POST", "/detokenize", false, [&] { return Detokenize(request); }},
      {"GET", "/kv/decisions", false, [&] { return KvDecisions(); }},
      {"POST", "/kv/blocks/v1/chat/completions", false, [&] { return KvBlocks(request, true); }},
      {"POST", "/kv/blocks/v1/completions", false, [&] { return KvBlocks(request, false); }},
      {"POST", "/reset_prefix_cache", false,
       [&] {
         engine_.ResetPrefixCache();
         return JsonResponse("");
       }},
  };
  const bool one_model = request.path.compare(0, 11, "/v1/models/") == 0;
  const std::string path = one_model ? "/v1/models" : request.path;
  bool known_path = false;
  for (const Endpoint& endpoint : endpoints) {
    if (path != endpoint.path) {
      continue;
    }
    known_path = true;
    if (request.method != endpoint.method && !(request.method == "HEAD" && endpoint.open)) {
      continue;
    }
    if (std::optional<ApiError> error = CheckApiKey(request, options_.api_key);
        error && !endpoint.open) {
      return ErrorResponse(*error);
    }
    return endpoint.handler();
  }
  ApiError error;
  error.status = known_path ? 405 : 404;
  error.message = known_path ? request.path + " does not take " + request.method + "."
                             : "There is no endpoint " + request.path + ".";
  error.code = known_path ? "method_not_allowed" : "not_found";
  return ErrorResponse(error);
}

std::optional<ApiError> OpenAiServer::CheckModel(const std::string& name) const {
  const std::vector<std::string>& names = options_.model_names;
  if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) {
    return std::nullopt;
  }
  ApiError error;
  error.message =
      "The model '" + name.substr(0, 200) + "' is not served here; '" + names.front() + "' is.";
  error.param = "model";
  error.code = "model_not_found";
  return error;
}

std::string OpenAiServer::NewId(const char* prefix, const HttpRequest& request) {
  const std::string* given = request.Header("X-Request-Id");
  if (given != nullptr && !given->empty() && given->size() <= 128 &&
      std::all_of(given->begin(), given->end(), [](char c) { return c > ' ' && c < 127; })) {
    return prefix + *given;
  }
  Rng rng(options_.id_seed, next_id_++);
  char text[33];
  std::snprintf(text, sizeof(text), "%016" PRIx64 "%016" PRIx64, rng.Next(), rng.Next());
  return prefix + std::string(text);
}

ModelCard OpenAiServer::Card(const std::string& name) const {
  return ModelCard{name, options_.model_root, started_s_, engine_.max_request_tokens()};
}

HttpResponse OpenAiServer::Models(const HttpRequest& request) {
  constexpr size_t kPrefix = 11;  // "/v1/models/"
  if (request.path.size() > kPrefix) {
    const std::string name = request.path.substr(kPrefix);
    if (std::optional<ApiError> error = CheckModel(name)) {
      error->status = 404;
      return ErrorResponse(*error);
    }
    return JsonResponse(FormatModel(Card(name)));
  }
  std::vector<ModelCard> cards;
  for (const std::string& name : options_.model_names) {
    cards.push_back(Card(name));
  }
  return JsonResponse(FormatModelList(cards));
}

HttpResponse OpenAiServer::Tokenize(const HttpRequest& request) {
  ApiResult<TokenizeRequest> parsed = ParseTokenizeRequest(request.body);
  if (Failed(parsed)) {
    return ErrorResponse(std::get<ApiError>(parsed));
  }
  const TokenizeRequest& body = std::get<TokenizeRequest>(parsed);
  if (const std::optional<ApiError> error = CheckModel(body.model)) {
    return ErrorResponse(*error);
  }
  std::vector<TokenId> tokens;
  if (const auto* chat = std::get_if<ChatPrompt>(&body.input)) {
    ApiResult<std::vector<TokenId>> built = prompts_.Chat(*chat);
    if (Failed(built)) {
      return ErrorResponse(std::get<ApiError>(built));
    }
    tokens = std::move(std::get<std::vector<TokenId>>(built));
  } else {
    tokens = prompts_.Text(std::get<std::string>(body.input), body.add_special_tokens);
  }
  return JsonResponse(FormatTokens(tokens, engine_.max_request_tokens(),
                                   body.return_token_strs ? &prompts_.tokenizer() : nullptr));
}

HttpResponse OpenAiServer::Detokenize(const HttpRequest& request) {
  ApiResult<DetokenizeRequest> parsed = ParseDetokenizeRequest(request.body);
  if (Failed(parsed)) {
    return ErrorResponse(std::get<ApiError>(parsed));
  }
  const DetokenizeRequest& body = std::get<DetokenizeRequest>(parsed);
  if (const std::optional<ApiError> error = CheckModel(body.model)) {
    return ErrorResponse(*error);
  }
  const text::Tokenizer& tokenizer = prompts_.tokenizer();
  for (const TokenId token : body.tokens) {
    if (static_cast<size_t>(token) >= tokenizer.vocab_size()) {
      ApiError error;
      error.message = "Invalid value for 'tokens': " + std::to_string(token) +
                      " is not a token id of this model.";
      error.param = "tokens";
      return ErrorResponse(error);
    }
  }
  return JsonResponse(
      FormatDetokenized(text::Decode(tokenizer, body.tokens, {.skip_special = false})));
}

HttpResponse OpenAiServer::Health() {
  HealthFacts facts;
  facts.draining = engine_.draining();
  facts.role = options_.role;
  facts.engine_id = options_.engine_id;
  facts.events = options_.events;
  if (options_.kv_address) {
    facts.kv_host = options_.kv_address->host;
    facts.kv_port = options_.kv_address->port;
  }
  HttpResponse response = JsonResponse(FormatHealth(facts));
  response.status = facts.draining ? 503 : 200;
  return response;
}

HttpResponse OpenAiServer::KvDecisions() {
  std::string list;
  if (options_.kv_decisions) {
    for (const std::string& decision : options_.kv_decisions()) {
      list += (list.empty() ? "" : ",") + decision;
    }
  }
  return JsonResponse("{\"decisions\":[" + list + "]}");
}

HttpResponse OpenAiServer::KvBlocks(const HttpRequest& request, bool chat) {
  std::vector<TokenId> tokens;
  kv::ExtraKeys extra;
  if (chat) {
    ApiResult<ChatCompletionRequest> parsed = ParseChatCompletionRequest(request.body);
    if (Failed(parsed)) {
      return ErrorResponse(std::get<ApiError>(parsed));
    }
    const ChatCompletionRequest& body = std::get<ChatCompletionRequest>(parsed);
    ApiResult<std::vector<TokenId>> prompt = prompts_.Chat(body.chat);
    if (Failed(prompt)) {
      return ErrorResponse(std::get<ApiError>(prompt));
    }
    tokens = std::move(std::get<std::vector<TokenId>>(prompt));
    extra.cache_salt = body.params.cache_salt;
  } else {
    ApiResult<CompletionRequest> parsed = ParseCompletionRequest(request.body);
    if (Failed(parsed)) {
      return ErrorResponse(std::get<ApiError>(parsed));
    }
    CompletionRequest& body = std::get<CompletionRequest>(parsed);
    PromptInput& first = body.prompts.front();
    if (const auto* text = std::get_if<std::string>(&first)) {
      tokens = prompts_.Text(*text, body.add_special_tokens);
    } else {
      tokens = std::move(std::get<std::vector<TokenId>>(first));
    }
    extra.cache_salt = body.params.cache_salt;
  }
  std::vector<uint64_t> blocks;
  if (hasher_) {
    kv::HashChain chain(extra, options_.block_size_tokens);
    chain.Extend(*hasher_, tokens);
    for (const kv::ContentKey& key : chain.keys()) {
      blocks.push_back(events::HashNumber(key.hash));
    }
  }
  return JsonResponse(FormatBlocks(blocks, options_.block_size_tokens, tokens.size()));
}

ApiResult<KvTerms> OpenAiServer::Terms(const HttpRequest& request, Job& job) {
  KvParams& params = job.params.kv;
  if (std::optional<ApiError> error = ReadKvHeaders(request, params)) {
    return *std::move(error);
  }
  KvTerms terms;
  terms.quality = ToMinQuality(params.quality.value_or(options_.default_quality));
  terms.workload = params.workload;
  terms.slo_ttft_us = params.slo_ttft_us;
  terms.slo_us = params.slo_us;
  if (options_.check_quality) {
    if (const Result<void> can = options_.check_quality(terms.quality); !can) {
      return FromError(can.error(), "kvik.quality");
    }
  }
  if (!params.transfer ||
      !(params.transfer->do_remote_prefill || params.transfer->do_remote_decode)) {
    return terms;
  }
  if (!options_.kv_address) {
    ApiError error;
    error.message =
        "This server moves no KV: it was started without --role prefill or decode and without "
        "--kv-listen.";
    error.param = "kv_transfer_params";
    error.code = "unsupported_parameter";
    return error;
  }
  const TransferFields& given = *params.transfer;
  kv::TransferParams transfer;
  if (given.do_remote_prefill) {
    transfer.peer = JoinHostPort(given.remote_host, std::to_string(given.remote_port));
    transfer.remote_request = given.remote_request_id;
  }
  transfer.for_peer = given.do_remote_decode;
  terms.transfer = std::make_shared<const kv::TransferParams>(std::move(transfer));
  if (given.do_remote_decode) {
    TransferFields returned;
    returned.do_remote_prefill = true;
    returned.remote_host = options_.kv_address->host;
    if (IsWildcardHost(returned.remote_host)) {
      const std::string* host = request.Header("Host");
      returned.remote_host = host == nullptr ? "" : host->substr(0, host->rfind(':'));
    }
    returned.remote_port = options_.kv_address->port;
    returned.remote_engine_id = options_.engine_id;
    returned.remote_request_id = job.head.id;
    job.returned = std::move(returned);
  }
  return terms;
}

HttpResponse OpenAiServer::ChatCompletions(const HttpRequest& request) {
  ApiResult<ChatCompletionRequest> parsed = ParseChatCompletionRequest(request.body);
  if (Failed(parsed)) {
    return ErrorResponse(std::get<ApiError>(parsed));
  }
  ChatCompletionRequest& body = std::get<ChatCompletionRequest>(parsed);
  if (const std::optional<ApiError> error = CheckModel(body.params.model)) {
    return ErrorResponse(*error);
  }
  ApiResult<std::vector<TokenId>> prompt = prompts_.Chat(body.chat);
  if (Failed(prompt)) {
    return ErrorResponse(std::get<ApiError>(prompt));
  }
  Job job;
  job.kind = ReplyKind::kChat;
  job.head.id = NewId("chatcmpl-", request);
  job.params = std::move(body.params);
  const ApiResult<KvTerms> terms = Terms(request, job);
  if (Failed(terms)) {
    return ErrorResponse(std::get<ApiError>(terms));
  }
  ApiResult<std::unique_ptr<Generation>> generation = Generation::Start(
      engine_, prompts_, metrics_, clock_, {std::move(std::get<std::vector<TokenId>>(prompt))},
      job.params, std::get<KvTerms>(terms));
  if (Failed(generation)) {
    ApiError error = std::get<ApiError>(generation);
    if (error.param == "prompt") {
      error.param = "messages";
    }
    return ErrorResponse(error);
  }
  job.generation = std::move(std::get<std::unique_ptr<Generation>>(generation));
  return Run(request, std::move(job));
}

HttpResponse OpenAiServer::Completions(const HttpRequest& request) {
  ApiResult<CompletionRequest> parsed = ParseCompletionRequest(request.body);
  if (Failed(parsed)) {
    return ErrorResponse(std::get<ApiError>(parsed));
  }
  CompletionRequest& body = std::get<CompletionRequest>(parsed);
  if (const std::optional<ApiError> error = CheckModel(body.params.model)) {
    return ErrorResponse(*error);
  }
  Job job;
  job.kind = ReplyKind::kCompletion;
  job.head.id = NewId("cmpl-", request);
  job.params = std::move(body.params);
  const ApiResult<KvTerms> terms = Terms(request, job);
  if (Failed(terms)) {
    return ErrorResponse(std::get<ApiError>(terms));
  }
  std::vector<std::vector<TokenId>> prompts;
  size_t longest = 0;
  for (PromptInput& prompt : body.prompts) {
    if (const auto* text = std::get_if<std::string>(&prompt)) {
      prompts.push_back(prompts_.Text(*text, body.add_special_tokens));
      if (body.echo) {
        job.echoes.push_back(*text);
      }
    } else {
      prompts.push_back(std::move(std::get<std::vector<TokenId>>(prompt)));
      if (body.echo) {
        job.echoes.push_back(text::Decode(prompts_.tokenizer(), prompts.back(),
                                          {.skip_special = job.params.skip_special_tokens}));
      }
    }
    longest = std::max(longest, prompts.back().size());
  }
  if (!job.params.max_tokens) {
    // A default must not make a prompt too long that fits.
    const int64_t room = engine_.max_request_tokens() - static_cast<int64_t>(longest);
    job.params.max_tokens = static_cast<int32_t>(
        std::clamp<int64_t>(room, 1, std::max(kDefaultCompletionTokens, job.params.min_tokens)));
  }
  ApiResult<std::unique_ptr<Generation>> generation = Generation::Start(
      engine_, prompts_, metrics_, clock_, prompts, job.params, std::get<KvTerms>(terms));
  if (Failed(generation)) {
    return ErrorResponse(std::get<ApiError>(generation));
  }
  job.generation = std::move(std::get<std::unique_ptr<Generation>>(generation));
  return Run(request, std::move(job));
}

HttpResponse OpenAiServer::Run(const HttpRequest& request, Job job) {
  job.head.created_s = options_.unix_seconds();
  job.head.model = job.params.model.empty() ? options_.model_names.front() : job.params.model;
  job.head.fingerprint = options_.fingerprint;
  return job.params.stream ? RunStream(std::move(job)) : RunWhole(request, std::move(job));
}

HttpResponse OpenAiServer::RunWhole(const HttpRequest& request, Job job) {
  Generation& generation = *job.generation;
  std::vector<ReplyChoice> choices(static_cast<size_t>(generation.num_choices()));
  for (int32_t i = 0; i < generation.num_choices(); ++i) {
    ReplyChoice& choice = choices[static_cast<size_t>(i)];
    choice.index = i;
    choice.delta.text = job.EchoOf(i);
    choice.text_offset = static_cast<int32_t>(choice.delta.text.size());
  }
  while (!generation.finished()) {
    ApiResult<std::vector<GenerationEvent>> events = generation.Next(kClientCheckInterval);
    if (Failed(events)) {
      return ErrorResponse(std::get<ApiError>(events));
    }
    for (GenerationEvent& event : std::get<std::vector<GenerationEvent>>(events)) {
      ChoiceDelta& whole = choices[static_cast<size_t>(event.choice)].delta;
      whole.text += event.delta.text;
      whole.tokens.insert(whole.tokens.end(), std::make_move_iterator(event.delta.tokens.begin()),
                          std::make_move_iterator(event.delta.tokens.end()));
      whole.finish = event.delta.finish;
      whole.stop_reason = std::move(event.delta.stop_reason);
    }
    if (!generation.finished() && request.client_gone()) {
      return ErrorResponse(Unavailable("The client has left."));  // ~Generation aborts
    }
  }
  generation.Settle();
  KvReport report = generation.report();
  report.params = job.returned;
  const ReplyFormatter formatter(job.kind, job.head, prompts_.tokenizer(),
                                 job.params.sampling.num_logprobs);
  return JsonResponse(formatter.Full(choices, generation.usage(), report));
}

HttpResponse OpenAiServer::RunStream(Job job) {
  HttpResponse response;
  response.content_type = "text/event-stream; charset=utf-8";
  response.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  response.stream = [this, job = std::make_shared<Job>(std::move(job))](HttpStream& out) {
    Generation& generation = *job->generation;
    const GenerationParams& params = job->params;
    const ReplyFormatter formatter(job->kind, job->head, prompts_.tokenizer(),
                                   params.sampling.num_logprobs);
    const auto usage_so_far = [&] {
      return params.continuous_usage_stats ? std::optional<ReplyUsage>(generation.usage())
                                           : std::nullopt;
    };
    const auto count = static_cast<size_t>(generation.num_choices());
    std::vector<int32_t> offsets(count, 0);
    std::vector<bool> opened(count, false);
    while (!generation.finished()) {
      ApiResult<std::vector<GenerationEvent>> events = generation.Next(kClientCheckInterval);
      if (Failed(events)) {
        out.Write(SseEvent(FormatError(std::get<ApiError>(events))));
        out.Write(SseEvent("[DONE]"));
        return;
      }
      std::vector<GenerationEvent>& news = std::get<std::vector<GenerationEvent>>(events);
      const bool ends = generation.finished();
      KvReport report;
      if (ends) {
        generation.Settle();
        report = generation.report();
        report.params = job->returned;
      }
      std::string bytes;
      for (GenerationEvent& event : news) {
        const auto index = static_cast<size_t>(event.choice);
        ReplyChoice choice{event.choice, std::move(event.delta), 0};
        if (!opened[index]) {
          opened[index] = true;
          if (job->kind == ReplyKind::kChat) {
            bytes += SseEvent(formatter.RoleChunk(event.choice, usage_so_far()));
          } else {
            const std::string echo = job->EchoOf(event.choice);
            offsets[index] = static_cast<int32_t>(echo.size());
            choice.delta.text = echo + choice.delta.text;
          }
        }
        choice.text_offset = offsets[index];
        for (const engine::TokenOutput& token : choice.delta.tokens) {
          offsets[index] += static_cast<int32_t>(prompts_.tokenizer().Piece(token.token).size());
        }
        const bool says_something =
            !choice.delta.text.empty() || choice.delta.finish || params.sampling.num_logprobs >= 0;
        if (ends && &event == &news.back() && !params.include_usage) {
          bytes +=
              SseEvent(formatter.LastChunk(choice, usage_so_far(), generation.usage(), report));
        } else if (says_something) {
          bytes += SseEvent(formatter.Chunk(choice, usage_so_far()));
        }
      }
      // A chunk may hold back everything, so writing alone would not notice that a client left.
      if (!out.Write(bytes) || (bytes.empty() && out.client_gone())) {
        return;  // ~Generation aborts
      }
    }
    if (params.include_usage) {
      KvReport report = generation.report();
      report.params = job->returned;
      out.Write(SseEvent(formatter.UsageChunk(generation.usage(), report)));
    }
    out.Write(SseEvent("[DONE]"));
  };
  return response;
}

}  // namespace kvik::server
