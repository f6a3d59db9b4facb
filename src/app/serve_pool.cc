// SPDX-License-Identifier: Apache-2.0
#include "app/serve_pool.h"

#include <atomic>
#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "app/engine_id.h"
#include "app/kv_events.h"
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
namespace {

// What the pool's objects do not say: how many tokens a block has. Its peers do.
class PeersBlockSize {
 public:
  void Note(int32_t tokens) {
    int32_t none = 0;
    if (tokens > 0 && !tokens_.compare_exchange_strong(none, tokens) && none != tokens) {
      tokens_ = kDifferent;
    }
  }
  // 0: nobody has said, or they differ.
  [[nodiscard]] int32_t tokens() const {
    const int32_t tokens = tokens_;
    return tokens == kDifferent ? 0 : tokens;
  }

 private:
  static constexpr int32_t kDifferent = -1;
  std::atomic<int32_t> tokens_{0};
};

}  // namespace

Result<int> ServePool(const PoolServeOptions& options) {
  KVIK_ASSIGN(const std::unique_ptr<HttpFront> front, HttpFront::Bind(options.http));
  const SystemClock clock;
  const std::string engine_id = NewEngineId(clock);
  PeersBlockSize block_size;
  std::unique_ptr<KvEvents> kv_events;
  if (options.events.enable_kv_cache_events) {
    KvEvents::Options events_options;
    events_options.config = options.events;
    events_options.block_size_tokens = [&block_size] { return block_size.tokens(); };
    KVIK_ASSIGN(kv_events, KvEvents::Create(std::move(events_options)));
  }
  KVIK_ASSIGN(const std::unique_ptr<store::Store> store,
              OpenKvStore(options.store, clock, kv_events ? kv_events->store_sink() : nullptr));
  connector::ObjectNodeOptions node_options;
  node_options.on_peer_connected = [&block_size](const transfer::Peer& peer) {
    block_size.Note(peer.hello.block_size_tokens);
  };
  const std::unique_ptr<connector::ObjectNode> node =
      connector::ObjectNode::Create(std::move(node_options), store.get(), clock);
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
      facts.engine_id = engine_id;
      if (kv_events != nullptr) {
        facts.events = kv_events->address();
      }
      response.body = server::FormatHealth(facts);
    } else if (request.path == "/version") {
      response.body = server::FormatVersion(kVersion);
    } else if (request.path == "/metrics") {
      response.content_type = "text/plain; version=0.0.4; charset=utf-8";
      server::KvReadings readings;
      readings.node = node->counters();
      readings.store = store->stats();
      readings.port = endpoint->stats();
      if (kv_events != nullptr) {
        readings.events = kv_events->stats();
      }
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
