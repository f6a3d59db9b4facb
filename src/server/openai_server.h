// SPDX-License-Identifier: Apache-2.0
// server/openai_server.h: the endpoints, without the sockets.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "kv/block_hasher.h"
#include "server/engine_client.h"
#include "server/generation.h"
#include "server/http.h"
#include "server/openai_request.h"
#include "server/openai_response.h"
#include "server/prompt.h"
#include "server/server_metrics.h"

namespace kvik::server {

// Where other servers come for KV.
struct KvAddress {
  std::string host;  // a wildcard: whatever the client has reached us by
  int32_t port = 0;
};

struct OpenAiServerOptions {
  std::vector<std::string> model_names;  // the first is what replies say; not empty
  std::string model_root;                // path of the model
  std::string api_key;                   // empty = none needed
  std::string version;
  std::string fingerprint;
  std::function<int64_t()> unix_seconds;
  uint64_t id_seed = 0;  // of request ids
  std::string role = "both";
  std::string engine_id;                // another one after each start
  std::optional<EventsAddress> events;  // where events about the cache's blocks are published
  // How the cache names its blocks, for routers that ask; none: they are not told.
  std::optional<kv::HashOptions> hash;
  int32_t block_size_tokens = 0;  // with `hash`
  float default_quality = 1;      // of requests that name none
  // Whether requests of this quality can be served at all; empty: all can.
  std::function<Result<void>(const kv::MinQuality&)> check_quality;
  std::optional<KvAddress> kv_address;  // none: requests with kv_transfer_params are refused
  // Further lines of /metrics; may be empty.
  std::function<std::string()> more_metrics;
  // The last choices of how KV was moved, as JSON objects, oldest first; empty: nothing moves.
  std::function<std::vector<std::string>()> kv_decisions;
};

// Handle is thread-safe; it runs on the connection's thread and waits for the engine there.
class OpenAiServer {
 public:
  // References must outlive the server.
  OpenAiServer(OpenAiServerOptions options, EngineClient& engine, const PromptBuilder& prompts,
               ServerMetrics& metrics, const Clock& clock);

  // Never throws; every failure is a reply.
  HttpResponse Handle(const HttpRequest& request);

  // The body of errors that the transport finds (bad HTTP, too large a body).
  static std::string TransportError(int status);

 private:
  struct Job;
  HttpResponse Route(const HttpRequest& request);
  HttpResponse ChatCompletions(const HttpRequest& request);
  HttpResponse Completions(const HttpRequest& request);
  HttpResponse Tokenize(const HttpRequest& request);
  HttpResponse Detokenize(const HttpRequest& request);
  HttpResponse Models(const HttpRequest& request);
  HttpResponse Health();
  HttpResponse KvDecisions();
  // The names that the blocks of the prompt would have, of a request of this path.
  HttpResponse KvBlocks(const HttpRequest& request, bool chat);
  // What the request says of KV, checked; also fills in job.returned.
  ApiResult<KvTerms> Terms(const HttpRequest& request, Job& job);
  HttpResponse Run(const HttpRequest& request, Job job);
  HttpResponse RunWhole(const HttpRequest& request, Job job);
  HttpResponse RunStream(Job job);
  [[nodiscard]] std::optional<ApiError> CheckModel(const std::string& name) const;
  [[nodiscard]] ModelCard Card(const std::string& name) const;
  std::string NewId(const char* prefix, const HttpRequest& request);

  OpenAiServerOptions options_;
  const std::optional<kv::BlockHasher> hasher_;
  EngineClient& engine_;
  const PromptBuilder& prompts_;
  ServerMetrics& metrics_;
  const Clock& clock_;
  const int64_t started_s_;
  std::atomic<uint64_t> next_id_{0};
};

}  // namespace kvik::server
