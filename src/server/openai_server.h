// SPDX-License-Identifier: Apache-2.0
// server/openai_server.h: the endpoints, without the sockets.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "server/engine_client.h"
#include "server/http.h"
#include "server/openai_request.h"
#include "server/openai_response.h"
#include "server/prompt.h"
#include "server/server_metrics.h"

namespace kvik::server {

struct OpenAiServerOptions {
  std::vector<std::string> model_names;  // the first is what replies say; not empty
  std::string model_root;                // path of the model
  std::string api_key;                   // empty = none needed
  std::string version;
  std::string fingerprint;
  std::function<int64_t()> unix_seconds;
  uint64_t id_seed = 0;  // of request ids
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
  HttpResponse Run(const HttpRequest& request, Job job);
  HttpResponse RunWhole(const HttpRequest& request, Job job);
  HttpResponse RunStream(Job job);
  [[nodiscard]] std::optional<ApiError> CheckModel(const std::string& name) const;
  [[nodiscard]] bool Authorized(const HttpRequest& request) const;
  [[nodiscard]] ModelCard Card(const std::string& name) const;
  std::string NewId(const char* prefix, const HttpRequest& request);

  OpenAiServerOptions options_;
  EngineClient& engine_;
  const PromptBuilder& prompts_;
  ServerMetrics& metrics_;
  const Clock& clock_;
  const int64_t started_s_;
  std::atomic<uint64_t> next_id_{0};
};

}  // namespace kvik::server
