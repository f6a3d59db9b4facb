// SPDX-License-Identifier: Apache-2.0
#include "app/serve_router.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "app/stop_signals.h"
#include "app/version.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/http.h"
#include "server/node_prober.h"
#include "server/node_table.h"
#include "server/openai_server.h"
#include "server/router.h"

namespace kvik::app {
namespace {

constexpr int64_t kProbeIntervalUs = 1'000'000;
// Of pieces of prompts that the router remembers.
constexpr size_t kMaxPrefixes = size_t{1} << 18;

}  // namespace

Result<int> ServeRouter(const RouterServeOptions& options) {
  StopSignals stop_signals;
  const SystemClock clock;
  server::NodeTable nodes(clock, kMaxPrefixes);
  const std::pair<const std::vector<std::string>*, server::NodeRole> named[] = {
      {&options.prefill, server::NodeRole::kPrefill},
      {&options.decode, server::NodeRole::kDecode},
      {&options.both, server::NodeRole::kBoth}};
  for (const auto& [urls, role] : named) {
    for (const std::string& url : *urls) {
      KVIK_TRY(server::HttpClient::Create(url));
      nodes.Join(url, role, 0);
    }
  }

  std::function<server::HttpResponse(const server::HttpRequest&)> handle;
  server::HttpServerOptions http_options;
  http_options.host = options.host;
  http_options.port = options.port;
  http_options.max_body_bytes = options.max_body_bytes;
  http_options.error_body = server::OpenAiServer::TransportError;
  KVIK_ASSIGN(const std::unique_ptr<server::HttpServer> http,
              server::HttpServer::Bind(http_options, [&handle](const server::HttpRequest& request) {
                return handle(request);
              }));
  server::NodeProber prober(nodes, kProbeIntervalUs);
  server::RouterOptions router_options;
  router_options.api_key = options.api_key;
  router_options.version = kVersion;
  router_options.fail_without_prefill = options.fail_without_prefill;
  router_options.id_seed =
      static_cast<uint64_t>(clock.NowMicros()) ^ (static_cast<uint64_t>(getpid()) << 40);
  router_options.on_join = [&prober] { prober.Wake(); };
  server::Router router(std::move(router_options), nodes, clock);
  handle = [&router](const server::HttpRequest& request) { return router.Handle(request); };

  std::atomic<bool> done{false};
  std::thread serving([&] {
    http->Serve();
    done = true;
  });
  std::printf("kvik: routing on http://%s:%d\n", options.host.c_str(), http->port());
  std::fflush(stdout);
  const bool asked = stop_signals.Wait(done);
  if (asked) {
    LogInfo("finishing the running requests");
    router.Drain();
    http->Shutdown();
  }
  serving.join();
  if (!asked) {
    return Err(ErrorCode::kUnavailable, "port %d stopped accepting connections", http->port());
  }
  LogInfo("stopped");
  return 0;
}

}  // namespace kvik::app
