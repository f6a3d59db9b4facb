// SPDX-License-Identifier: Apache-2.0
#include "server/node_prober.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/json_parse.h"
#include "base/log.h"
#include "server/http.h"

namespace kvik::server {
namespace {

using Json = nlohmann::json;

constexpr int kTimeoutS = 2;
constexpr size_t kMaxEndpointBytes = 512;

// "10.0.0.7" of "http://10.0.0.7:8000/x".
std::string HostOf(const std::string& url) {
  const size_t scheme = url.find("://");
  const size_t begin = scheme == std::string::npos ? 0 : scheme + 3;
  const size_t path = url.find('/', begin);
  const std::string address = url.substr(begin, path == std::string::npos ? path : path - begin);
  const size_t port = address.rfind(':');
  return port == std::string::npos ? address : address.substr(0, port);
}

// As `endpoint`, where others reach it. Empty: it is none, or too long to be one.
std::string Reachable(const std::string& endpoint, const std::string& url) {
  constexpr std::string_view kTcp = "tcp://";
  if (endpoint.size() > kMaxEndpointBytes) {
    return {};
  }
  if (!endpoint.starts_with(kTcp)) {
    return endpoint.starts_with("ipc://") ? endpoint : std::string();
  }
  const size_t colon = endpoint.rfind(':');
  if (colon <= kTcp.size()) {
    return {};
  }
  const std::string host = endpoint.substr(kTcp.size(), colon - kTcp.size());
  return std::string(kTcp) + (IsWildcardHost(host) ? HostOf(url) : host) + endpoint.substr(colon);
}

void Probe(NodeTable& nodes, const NodeState& node) {
  const Result<NodeFacts> facts = [&]() -> Result<NodeFacts> {
    KVIK_ASSIGN(const std::unique_ptr<HttpClient> client,
                HttpClient::Create(node.url, "", kTimeoutS, kTimeoutS));
    KVIK_ASSIGN(const HttpReply reply, client->Get("/health"));
    if (reply.status != 200) {
      return Err(ErrorCode::kUnavailable, "/health says %d", reply.status);
    }
    return ParseHealth(reply.body, node.url);
  }();
  if (facts) {
    if (nodes.Up(node.url, *facts)) {
      LogInfo("%s is up", node.url.c_str());
    }
  } else if (nodes.Down(node.url, facts.error().message)) {
    LogWarning("%s is out: %s", node.url.c_str(), facts.error().message.c_str());
  }
}

}  // namespace

Result<NodeFacts> ParseHealth(std::string_view json, const std::string& url) {
  NodeFacts facts;
  if (json.empty()) {
    return facts;  // of a server that moves no KV
  }
  KVIK_ASSIGN(const Json health, ParseJson<Json>(json, {.max_bytes = 65536, .max_nesting = 8}));
  if (!health.is_object()) {
    return Err(ErrorCode::kInvalidInput, "/health is no JSON object");
  }
  const auto text = [](const Json& object, const char* name) {
    const auto it = object.find(name);
    return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
  };
  facts.engine_id = text(health, "engine_id");
  const auto published = health.find("kv_events");
  if (published != health.end() && published->is_object()) {
    events::EventSource source;
    source.endpoint = Reachable(text(*published, "endpoint"), url);
    if (const std::string again = Reachable(text(*published, "replay_endpoint"), url);
        !again.empty()) {
      source.replay_endpoint = again;
    }
    source.topic = text(*published, "topic");
    source.instance = facts.engine_id;
    if (!source.endpoint.empty()) {
      facts.events = std::move(source);
    }
  }
  const auto kv = health.find("kv");
  if (kv != health.end() && kv->is_object()) {
    facts.kv_host = text(*kv, "host");
    const auto port = kv->find("port");
    if (port == kv->end() || !port->is_number_integer() || *port < 1 || *port > 65535) {
      return Err(ErrorCode::kInvalidInput, "/health has no usable kv.port");
    }
    facts.kv_port = port->get<int32_t>();
    if (IsWildcardHost(facts.kv_host)) {
      facts.kv_host = HostOf(url);
    }
  }
  return facts;
}

NodeProber::NodeProber(NodeTable& nodes, int64_t interval_us, std::function<void()> after_round)
    : nodes_(nodes),
      interval_us_(interval_us),
      after_round_(std::move(after_round)),
      thread_([this] {
        while (!wake_.closed()) {
          Round();
          wake_.PopFor(std::chrono::microseconds(interval_us_));
        }
      }) {}

NodeProber::~NodeProber() {
  wake_.Close();
  thread_.join();
}

void NodeProber::Wake() {
  bool now = true;
  wake_.TryPush(now);
}

void NodeProber::Round() {
  for (const std::string& url : nodes_.DropExpired()) {
    LogWarning("%s has left without a word", url.c_str());
  }
  std::vector<std::thread> probes;
  for (const NodeState& node : nodes_.Nodes()) {
    probes.emplace_back([this, node] { Probe(nodes_, node); });
  }
  for (std::thread& probe : probes) {
    probe.join();
  }
  if (after_round_) {
    after_round_();
  }
}

}  // namespace kvik::server
