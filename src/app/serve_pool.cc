// SPDX-License-Identifier: Apache-2.0
#include "app/serve_pool.h"

#include <atomic>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "app/kv_link.h"
#include "app/stop_signals.h"
#include "app/version.h"
#include "base/clock.h"
#include "base/log.h"
#include "connector/object_node.h"
#include "server/http.h"
#include "server/kv_metrics.h"
#include "server/openai_response.h"
#include "server/openai_server.h"
#include "transfer/endpoint.h"
#include "transfer/object_server.h"

namespace kvik::app {

Result<int> ServePool(const PoolServeOptions& options) {
  StopSignals stop_signals;
  const SystemClock clock;
  KVIK_ASSIGN(const std::unique_ptr<store::Store> store, OpenKvStore(options.store, clock));
  const std::unique_ptr<connector::ObjectNode> node =
      connector::ObjectNode::Create({}, store.get(), clock);
  const std::unique_ptr<transfer::StreamHandler> objects = transfer::MakeObjectServer(*node);
  transfer::EndpointOptions endpoint_options;
  endpoint_options.hello.role = transfer::Role::kPool;
  KVIK_TRY(UseLink(options.kv_link, clock, endpoint_options));
  KVIK_ASSIGN(const std::unique_ptr<transfer::Endpoint> endpoint,
              transfer::Endpoint::Create(endpoint_options, clock, objects.get()));

  server::KvMetrics metrics(std::map<std::string, std::string>{{"role", "pool"}});
  std::atomic<bool> draining{false};
  const auto handle = [&](const server::HttpRequest& request) {
    server::HttpResponse response;
    if (request.path == "/health") {
      response.status = draining ? 503 : 200;
      server::HealthFacts facts;
      facts.draining = draining;
      facts.role = "pool";
      response.body = server::FormatHealth(facts);
    } else if (request.path == "/version") {
      response.body = server::FormatVersion(kVersion);
    } else if (request.path == "/metrics") {
      response.content_type = "text/plain; version=0.0.4; charset=utf-8";
      server::KvReadings readings;
      readings.node = node->counters();
      readings.store = store->stats();
      response.body = metrics.Render(readings);
    } else {
      response.status = 404;
      response.body = server::OpenAiServer::TransportError(404);
    }
    return response;
  };
  server::HttpServerOptions http_options;
  http_options.host = options.host;
  http_options.port = options.port;
  http_options.error_body = server::OpenAiServer::TransportError;
  KVIK_ASSIGN(const std::unique_ptr<server::HttpServer> http,
              server::HttpServer::Bind(http_options, handle));
  KVIK_ASSIGN(const std::string kv_address, endpoint->Listen(options.kv_listen));

  std::atomic<bool> done{false};
  std::thread serving([&] {
    http->Serve();
    done = true;
  });
  std::printf("kvik: pool of KV at kvik://%s, health on http://%s:%d\n", kv_address.c_str(),
              options.host.c_str(), http->port());
  std::fflush(stdout);
  const bool asked = stop_signals.Wait(done);
  draining = true;
  http->Shutdown();
  serving.join();
  endpoint->Close();
  store->Flush();
  if (!asked) {
    return Err(ErrorCode::kUnavailable, "port %d stopped accepting connections", http->port());
  }
  LogInfo("stopped");
  return 0;
}

}  // namespace kvik::app
