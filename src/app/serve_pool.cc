// SPDX-License-Identifier: Apache-2.0
#include "app/serve_pool.h"

#include <atomic>
#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "app/kv_link.h"
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
  KVIK_ASSIGN(const std::unique_ptr<HttpFront> front, HttpFront::Bind(options.http));
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
      readings.port = endpoint->stats();
      response.body = metrics.Render(readings);
    } else {
      response.status = 404;
      response.body = server::OpenAiServer::TransportError(404);
    }
    return response;
  };
  KVIK_ASSIGN(const std::string kv_address, endpoint->Listen(options.kv_listen));

  front->Serve(handle);
  std::printf("kvik: pool of KV at kvik://%s, health on %s\n", kv_address.c_str(),
              front->url().c_str());
  std::fflush(stdout);
  const bool asked = front->WaitUntilAsked();
  draining = true;
  front->Finish();
  endpoint->Close();
  store->Flush();
  return front->Outcome(asked);
}

}  // namespace kvik::app
