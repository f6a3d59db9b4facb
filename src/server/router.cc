// SPDX-License-Identifier: Apache-2.0
#include "server/router.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/json_parse.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "base/rng.h"
#include "server/api_error.h"
#include "server/api_key.h"
#include "server/openai_request.h"
#include "server/sse.h"
#include "server/upstream.h"

namespace kvik::server {
namespace {

using Json = nlohmann::ordered_json;

// How long a client may be gone before its calls are broken, while nothing comes.
constexpr std::chrono::milliseconds kClientCheckInterval{100};
constexpr int64_t kMaxLeaseMs = 24 * 3600 * 1000;
constexpr int kToAllTimeoutS = 10;  // of a node, when each is told something
// For a node to say how blocks are named: more than tokenising a long prompt takes, and little
// beside computing one. One that was silent is not asked again for a while.
constexpr std::chrono::milliseconds kNamesPatience{200};
constexpr int64_t kNamesPauseUs = 1'000'000;
constexpr size_t kMaxNamesBytes = size_t{8} << 20;
constexpr uint64_t kMaxPromptTokens = uint64_t{1} << 24;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

HttpResponse JsonResponse(std::string body, int status = 200) {
  HttpResponse response;
  response.status = status;
  response.body = std::move(body);
  return response;
}

HttpResponse ErrorResponse(const ApiError& error) {
  return JsonResponse(FormatError(error), error.status);
}

HttpResponse Unavailable(const std::string& message) {
  return ErrorResponse(FromError(Error{ErrorCode::kUnavailable, message}));
}

HttpResponse BadRequest(const std::string& message, const char* param = "") {
  ApiError error;
  error.message = message;
  error.param = param;
  return ErrorResponse(error);
}

// What the prompt is to whoever compares beginnings: the text, or how it is written.
std::string PromptText(const Json& body) {
  for (const char* name : {"messages", "prompt"}) {
    const auto it = body.find(name);
    if (it != body.end()) {
      return it->is_string() ? it->get<std::string>() : Dump(*it);
    }
  }
  return {};
}

// What a node says of the blocks of a prompt. False: nothing of use.
bool ReadBlocks(const std::string& text, PromptTrace& prompt) {
  const Result<Json> json = ParseJson<Json>(text, {.max_nesting = 4});
  if (!json || !json->is_object()) {
    return false;
  }
  const auto number = [&](const char* name) {
    const auto it = json->find(name);
    return it != json->end() && it->is_number_unsigned() ? it->get<uint64_t>() : 0;
  };
  const uint64_t num_tokens = number("num_tokens");
  const uint64_t block_size = number("block_size");
  const auto hashes = json->find("block_hashes");
  if (num_tokens == 0 || num_tokens > kMaxPromptTokens || block_size == 0 ||
      block_size > kMaxPromptTokens || hashes == json->end() || !hashes->is_array() ||
      hashes->size() != num_tokens / block_size ||
      !std::all_of(hashes->begin(), hashes->end(),
                   [](const Json& hash) { return hash.is_number_unsigned(); })) {
    return false;
  }
  prompt.num_tokens = static_cast<int64_t>(num_tokens);
  prompt.block_size_tokens = static_cast<int32_t>(block_size);
  prompt.blocks = hashes->get<std::vector<uint64_t>>();
  return true;
}

HttpHeaders ForwardedHeaders(const HttpRequest& request) {
  HttpHeaders headers;
  for (const char* name : {"Authorization", "X-Kvik-Workload", "X-Kvik-Slo-Ttft-Ms",
                           "X-Kvik-Slo-Ms", "X-Kvik-Quality"}) {
    if (const std::string* value = request.Header(name)) {
      headers.emplace_back(name, *value);
    }
  }
  return headers;
}

Json TransferJson(bool prefill_elsewhere, bool decode_elsewhere, const NodeFacts* at,
                  const std::string& request_id) {
  Json json;
  json["do_remote_prefill"] = prefill_elsewhere;
  json["do_remote_decode"] = decode_elsewhere;
  if (at != nullptr) {
    json["remote_host"] = at->kv_host;
    json["remote_port"] = at->kv_port;
    json["remote_engine_id"] = at->engine_id;
  }
  json["remote_request_id"] = request_id;
  return json;
}

// The same prompt with as little to generate as can be, so that the node computes its KV.
Json PrefillBody(const Json& body) {
  Json prefill = body;
  for (const char* name : {"max_completion_tokens", "min_tokens", "n", "stop", "stream_options",
                           "logprobs", "top_logprobs", "echo", "best_of"}) {
    prefill.erase(name);
  }
  if (const auto kvik = prefill.find("kvik"); kvik != prefill.end() && kvik->is_object()) {
    kvik->erase("forced_token_ids");
  }
  prefill["max_tokens"] = 1;
  prefill["stream"] = true;  // the head of its reply says that the prompt was accepted
  return prefill;
}

// A node that stands still keeps its connections: that it is gone shows by nothing coming from it
// while it does not answer the prober either.
class SilenceWatch {
 public:
  SilenceWatch(const NodeTable& nodes, const Clock& clock, std::string url)
      : nodes_(&nodes), clock_(&clock), url_(std::move(url)) {}

  void Heard() { down_since_us_.reset(); }
  // Nothing has come just now. Whether that has lasted too long.
  bool TooLong(int64_t patience_us) {
    const std::optional<bool> up = nodes_->IsUp(url_);
    if (up == true) {
      down_since_us_.reset();
    } else if (up == false && !down_since_us_) {
      down_since_us_ = clock_->NowMicros();
    }
    return down_since_us_ && clock_->NowMicros() - *down_since_us_ >= patience_us;
  }

 private:
  const NodeTable* nodes_;
  const Clock* clock_;
  std::string url_;
  std::optional<int64_t> down_since_us_;  // stays when it leaves without a word
};

constexpr const char* kSilent = "it does not answer any more";

}  // namespace

struct Router::Metrics {
  Metrics() {
    // So that graphs begin with 0, not with the first mishap.
    for (const char* outcome : {"ok", "refused", "failed", "client_left"}) {
      Requests(outcome);
    }
    for (const char* role : {"prefill", "decode"}) {
      Retries(role);
    }
    for (const char* outcome : {"ok", "refused", "failed"}) {
      Lookups(outcome);
    }
  }
  void Request(const char* outcome) { Requests(outcome).Add(); }
  // A node was asked how a prompt's blocks are named.
  void Names(const char* outcome) { Lookups(outcome).Add(); }
  // Follows a total that is kept elsewhere.
  void Count(const char* name, const char* help, const std::string& url, int64_t total)
      KVIK_EXCLUDES(mutex) {
    MutexLock lock(mutex);
    int64_t& seen = totals[name + url];
    // A node that has started anew counts anew.
    const int64_t more = total < seen ? total : total - seen;
    seen = total;
    registry.AddCounter(name, help, {{"url", url}}).Add(static_cast<double>(more));
  }
  // A call that failed and was made again at another node, or done without.
  void Retry(const char* role) { Retries(role).Add(); }

  MetricsRegistry registry;
  Mutex mutex;
  std::map<std::string, int64_t> totals KVIK_GUARDED_BY(mutex);
  Histogram& first_byte = registry.AddHistogram(
      "kvik:router_time_to_first_byte_seconds", "From arrival to the first byte of an answer.",
      {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60});
  Histogram& prefill_accept = registry.AddHistogram(
      "kvik:router_prefill_accept_seconds", "From arrival until a prefill node took the prompt.",
      {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5});

 private:
  Counter& Requests(const char* outcome) {
    return registry.AddCounter("kvik:router_requests_total", "Requests by how they ended.",
                               {{"outcome", outcome}});
  }
  Counter& Lookups(const char* outcome) {
    return registry.AddCounter("kvik:router_block_lookups_total",
                               "Prompts whose blocks a node was asked to name, by what came of it.",
                               {{"outcome", outcome}});
  }
  Counter& Retries(const char* role) {
    return registry.AddCounter("kvik:router_retries_total",
                               "Calls to nodes that failed, by the node's role.", {{"role", role}});
  }
};

// One request on its way: the calls that are made for it.
class Router::Relay : public std::enable_shared_from_this<Relay> {
 public:
  Relay(Router& router, const HttpRequest& request, Json body, std::string id)
      : router_(router),
        path_(request.path),
        headers_(ForwardedHeaders(request)),
        body_(std::move(body)),
        id_(std::move(id)),
        arrived_us_(router.clock_.NowMicros()),
        prompt_{.pieces = PromptPieces(PromptText(body_))} {
    headers_.emplace_back("X-Request-Id", id_);
  }

  // Until the answer is there, or has begun to stream.
  HttpResponse Run(const HttpRequest& request) {
    const auto gone = [&] { return request.client_gone(); };
    const bool arranged = body_.contains("kv_transfer_params");  // the client did it by itself
    AskForBlocks(gone);
    for (;;) {
      decode_.visit = router_.nodes_.Pick(NodeRole::kDecode, prompt_, decode_.tried);
      if (decode_.visit == nullptr) {
        router_.metrics_->Request("failed");
        return last_failure_ ? *std::move(last_failure_)
                             : Unavailable("No node that decodes is up.");
      }
      if (decode_.visit->role() == NodeRole::kDecode && !arranged && !from_) {
        if (std::optional<HttpResponse> refused = Prefill(gone)) {
          return *std::move(refused);
        }
      }
      if (std::optional<HttpResponse> reply = Decode(gone)) {
        return *std::move(reply);
      }
      decode_.tried.push_back(decode_.visit->url());
      router_.metrics_->Retry("decode");
    }
  }

 private:
  using Gone = std::function<bool()>;
  // A role in this request, and who plays it.
  struct Part {
    std::vector<std::string> tried;
    std::unique_ptr<NodeTable::Visit> visit;
    int number = 0;  // of the call
    std::unique_ptr<UpstreamCall> call;
    bool accepted = false;  // something has come of it
    std::optional<SilenceWatch> silence;
  };

  void Call(Part& part, const Json& body) {
    HttpExchange exchange;
    exchange.path = path_;
    exchange.headers = headers_;
    exchange.body = Dump(body);
    part.number = ++calls_;
    part.accepted = false;
    part.silence.emplace(router_.nodes_, router_.clock_, part.visit->url());
    part.call = std::make_unique<UpstreamCall>(part.number, part.visit->url(), std::move(exchange),
                                               events_);
  }

  // The next event of a part's call, its end if it is given up; nullopt when the client has left.
  std::optional<UpstreamEvent> Next(Part& part, const Gone& gone) {
    for (;;) {
      std::optional<UpstreamEvent> event = events_->PopFor(kClientCheckInterval);
      if (!event) {
        if (gone()) {
          return std::nullopt;
        }
        // A decode node may take its time before it accepts: it waits for KV.
        const bool prompt = &part == &prefill_ && !part.accepted;
        if (part.silence->TooLong(prompt ? router_.options_.silent_accept_us
                                         : router_.options_.silent_answer_us)) {
          part.number = 0;  // what it says when it is broken is nobody's
          UpstreamEvent end;
          end.error = Err(ErrorCode::kUnavailable, "%s", kSilent);
          return end;
        }
      } else if (event->call == part.number) {
        part.accepted = true;
        part.silence->Heard();
        return event;
      } else if (event->call == prefill_.number && event->kind == UpstreamEvent::Kind::kEnd) {
        if (event->error) {
          Failed(prefill_, event->error->message);  // the decode node goes on by itself
        }
        prefill_.visit.reset();
      }
    }
  }
  // The rest of a reply. False: the client has left, or the call broke.
  bool ReadBody(Part& part, const Gone& gone, std::string& body) {
    for (;;) {
      std::optional<UpstreamEvent> event = Next(part, gone);
      if (!event || event->error) {
        return false;
      }
      if (event->kind == UpstreamEvent::Kind::kEnd) {
        return true;
      }
      body += event->bytes;
    }
  }

  void Failed(Part& part, const std::string& why) {
    part.visit->Fail();
    if (router_.nodes_.Down(part.visit->url(), why)) {
      LogWarning("%s is out: %s", part.visit->url().c_str(), why.c_str());
    }
  }
  HttpResponse ClientLeft() {
    router_.metrics_->Request("client_left");
    End();
    return Unavailable("The client has left.");
  }
  void End() {
    for (Part* part : {&prefill_, &decode_}) {
      part->call.reset();
      part->visit.reset();
    }
  }

  // Fills in the names of the prompt's blocks if a node says them soon. Without them the prompt
  // goes by its text.
  void AskForBlocks(const Gone& gone) {
    const std::optional<std::string> url = router_.nodes_.WhomToAsk();
    if (!url || prompt_.pieces.empty() || router_.clock_.NowMicros() < router_.ask_again_us_) {
      return;
    }
    HttpExchange exchange;
    exchange.path = "/kv/blocks" + path_;
    exchange.headers = headers_;
    exchange.body = Dump(body_);
    asking_ = std::make_unique<UpstreamCall>(0, *url, std::move(exchange), names_);
    std::string reply;
    int status = 0;
    for (;;) {
      std::optional<UpstreamEvent> event = names_->PopFor(kNamesPatience);
      if (!event && gone()) {
        return;
      }
      if (!event || event->error || reply.size() > kMaxNamesBytes) {
        router_.metrics_->Names("failed");
        router_.ask_again_us_ = router_.clock_.NowMicros() + kNamesPauseUs;
        return;
      }
      if (event->kind == UpstreamEvent::Kind::kEnd) {
        break;
      }
      status = event->kind == UpstreamEvent::Kind::kStart ? event->status : status;
      reply += event->bytes;
    }
    const bool read = status == 200 && ReadBlocks(reply, prompt_);
    router_.metrics_->Names(read ? "ok" : "refused");  // the request itself will be refused, too
  }

  // Finds a prefill node that takes the prompt. What is returned goes to the client and that is it.
  std::optional<HttpResponse> Prefill(const Gone& gone) {
    for (;;) {
      prefill_.visit = router_.nodes_.Pick(NodeRole::kPrefill, prompt_, prefill_.tried);
      if (prefill_.visit == nullptr) {
        prefill_.call.reset();
        if (!router_.options_.fail_without_prefill) {
          return std::nullopt;
        }
        router_.metrics_->Request("failed");
        return Unavailable("No prefill node takes the request.");
      }
      Json body = PrefillBody(body_);
      // What the decode node may have of earlier turns needs not be computed again.
      const NodeFacts& other = decode_.visit->facts();
      const bool has_more =
          !other.kv_host.empty() && decode_.visit->seen_tokens() > prefill_.visit->seen_tokens();
      body["kv_transfer_params"] = TransferJson(has_more, true, has_more ? &other : nullptr, id_);
      Call(prefill_, body);
      const std::optional<UpstreamEvent> head = Next(prefill_, gone);
      if (!head) {
        return ClientLeft();
      }
      if (head->kind == UpstreamEvent::Kind::kStart && head->status < 300) {
        router_.metrics_->prefill_accept.Observe(SinceArrivalS());
        from_ = prefill_.visit->facts();
        return std::nullopt;
      }
      if (head->kind == UpstreamEvent::Kind::kEnd) {
        Failed(prefill_, head->error ? head->error->message : "no reply");
      } else {
        HttpResponse reply;
        reply.status = head->status;
        const bool whole = ReadBody(prefill_, gone, reply.body);
        if (whole && head->status < 500 && head->status != 429) {
          router_.metrics_->Request("refused");
          End();
          return reply;
        }
        prefill_.visit->Fail();
      }
      prefill_.tried.push_back(prefill_.visit->url());
      router_.metrics_->Retry("prefill");
    }
  }

  // nullopt: this node did not answer, and nothing has reached the client.
  std::optional<HttpResponse> Decode(const Gone& gone) {
    Json body = body_;
    if (from_) {
      body["kv_transfer_params"] = TransferJson(true, false, &*from_, id_);
    }
    Call(decode_, body);
    std::optional<UpstreamEvent> head = Next(decode_, gone);
    if (!head) {
      return ClientLeft();
    }
    if (head->kind != UpstreamEvent::Kind::kStart) {
      Failed(decode_, head->error ? head->error->message : "no reply");
      return std::nullopt;
    }
    router_.metrics_->first_byte.Observe(SinceArrivalS());
    HttpResponse reply;
    reply.status = head->status;
    reply.content_type = head->content_type;
    if (head->status < 300 && head->content_type.starts_with("text/event-stream")) {
      reply.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
      reply.stream = [self = shared_from_this()](HttpStream& out) { self->Stream(out); };
      return reply;
    }
    if (!ReadBody(decode_, gone, reply.body)) {
      if (gone()) {
        return ClientLeft();
      }
      Failed(decode_, "the reply broke off");
      return std::nullopt;
    }
    if (reply.status >= 500 || reply.status == 429) {
      decode_.visit->Fail();
      last_failure_ = std::move(reply);
      return std::nullopt;
    }
    router_.metrics_->Request(reply.status < 300 ? "ok" : "refused");
    End();
    return reply;
  }

  void Stream(HttpStream& out) {
    for (;;) {
      const std::optional<UpstreamEvent> event = Next(decode_, [&] { return out.client_gone(); });
      if (!event || (event->kind == UpstreamEvent::Kind::kBytes && !out.Write(event->bytes))) {
        router_.metrics_->Request("client_left");
        break;
      }
      if (event->kind != UpstreamEvent::Kind::kEnd) {
        continue;
      }
      if (event->error) {
        Failed(decode_, event->error->message);
        const ApiError error =
            FromError(Error{ErrorCode::kUnavailable, "The node that was answering is gone."});
        // Ends an event that may have been cut.
        out.Write("\n\n" + SseEvent(FormatError(error)) + SseEvent("[DONE]"));
      }
      router_.metrics_->Request(event->error ? "failed" : "ok");
      break;
    }
    End();
  }

  [[nodiscard]] double SinceArrivalS() const {
    return static_cast<double>(router_.clock_.NowMicros() - arrived_us_) * 1e-6;
  }

  Router& router_;
  const std::string path_;
  HttpHeaders headers_;
  const Json body_;
  const std::string id_;
  const int64_t arrived_us_;
  PromptTrace prompt_;
  const std::shared_ptr<UpstreamCall::Queue> events_ = UpstreamCall::MakeQueue();
  const std::shared_ptr<UpstreamCall::Queue> names_ = UpstreamCall::MakeQueue();
  std::unique_ptr<UpstreamCall> asking_;  // may end long after it was given up
  int calls_ = 0;
  Part prefill_;
  Part decode_;
  std::optional<NodeFacts> from_;             // the prefill node that took the prompt
  std::optional<HttpResponse> last_failure_;  // of a decode node
};

Router::Router(RouterOptions options, NodeTable& nodes, const Clock& clock)
    : options_(std::move(options)),
      nodes_(nodes),
      clock_(clock),
      metrics_(std::make_unique<Metrics>()) {}

Router::~Router() = default;

HttpResponse Router::Handle(const HttpRequest& request) {
  try {
    return Route(request);
  } catch (const std::exception& e) {  // bad_alloc at best; one request must not end the router
    LogError("%s %s: %s", request.method.c_str(), request.path.c_str(), e.what());
    return ErrorResponse(FromError(Err(ErrorCode::kInternal, "The request failed: %s", e.what())));
  }
}

HttpResponse Router::Route(const HttpRequest& request) {
  const std::string& path = request.path;
  const bool get = request.method == "GET" || request.method == "HEAD";
  if (path == "/health" && get) {
    return Health();
  }
  if (path == "/ping") {
    return JsonResponse("");
  }
  if (path == "/version" && get) {
    return JsonResponse(Dump(Json{{"version", options_.version}}));
  }
  if (path == "/metrics" && get) {
    HttpResponse response = JsonResponse(RenderMetrics());
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    return response;
  }
  if (path == "/nodes") {
    if (std::optional<ApiError> error = CheckApiKey(request, options_.api_key)) {
      return ErrorResponse(*error);
    }
    if (get) {
      return ListNodes();
    }
    if (request.method == "POST" || request.method == "DELETE") {
      return request.method == "POST" ? JoinNode(request) : LeaveNode(request);
    }
  }
  if (request.method == "POST" && (path == "/v1/chat/completions" || path == "/v1/completions")) {
    return Generate(request);
  }
  if (request.method == "POST" && path == "/reset_prefix_cache") {
    return ForwardToAll(request);
  }
  return Forward(request);
}

std::string Router::NewId(const HttpRequest& request) {
  const std::string* given = request.Header("X-Request-Id");
  if (given != nullptr && !given->empty() && given->size() <= 128 &&
      std::all_of(given->begin(), given->end(), [](char c) { return c > ' ' && c < 127; })) {
    return *given;
  }
  Rng rng(options_.id_seed, next_id_++);
  char text[33];
  std::snprintf(text, sizeof(text), "%016" PRIx64 "%016" PRIx64, rng.Next(), rng.Next());
  return text;
}

HttpResponse Router::Generate(const HttpRequest& request) {
  if (draining_) {
    return Unavailable("The router is shutting down.");
  }
  Result<Json> body = ParseJson<Json>(
      request.body, {.max_nesting = kMaxJsonNesting, .max_members = kMaxJsonMembers});
  if (!body) {
    return BadRequest("The request body " + body.error().message + ".");
  }
  if (!body->is_object()) {
    return BadRequest("The request body must be a JSON object.");
  }
  return std::make_shared<Relay>(*this, request, *std::move(body), NewId(request))->Run(request);
}

HttpResponse Router::Forward(const HttpRequest& request) {
  std::vector<std::string> tried;
  for (;;) {
    const std::unique_ptr<NodeTable::Visit> visit = nodes_.Pick(NodeRole::kDecode, {}, tried);
    if (visit == nullptr) {
      return Unavailable("No node that decodes is up.");
    }
    HttpExchange exchange;
    exchange.method = request.method;
    exchange.path = request.path;
    exchange.headers = ForwardedHeaders(request);
    exchange.body = request.body;
    const auto events = UpstreamCall::MakeQueue();
    const UpstreamCall call(0, visit->url(), std::move(exchange), events);
    SilenceWatch silence(nodes_, clock_, visit->url());
    HttpResponse reply;
    for (;;) {
      std::optional<UpstreamEvent> event = events->PopFor(kClientCheckInterval);
      if (!event) {
        if (request.client_gone()) {
          return Unavailable("The client has left.");
        }
        if (!silence.TooLong(options_.silent_accept_us)) {
          continue;
        }
        event.emplace();
        event->error = Err(ErrorCode::kUnavailable, "%s", kSilent);
      }
      if (event->kind == UpstreamEvent::Kind::kStart) {
        reply.status = event->status;
        reply.content_type = event->content_type;
      } else if (event->kind == UpstreamEvent::Kind::kBytes) {
        reply.body += event->bytes;
      } else if (event->error) {
        visit->Fail();
        nodes_.Down(visit->url(), event->error->message);
        tried.push_back(visit->url());
        break;
      } else {
        return reply;
      }
    }
  }
}

HttpResponse Router::ForwardToAll(const HttpRequest& request) {
  std::string failed;
  for (const NodeState& node : nodes_.Nodes()) {
    if (!node.up) {
      failed += (failed.empty() ? "" : ", ") + node.url;
      continue;
    }
    Result<std::unique_ptr<HttpClient>> client =
        HttpClient::Create(node.url, "", kToAllTimeoutS, kToAllTimeoutS);
    HttpExchange exchange;
    exchange.method = request.method;
    exchange.path = request.path;
    exchange.headers = ForwardedHeaders(request);
    exchange.body = request.body;
    exchange.on_bytes = [](std::string_view) { return true; };
    const Result<int> status = client ? (*client)->Send(exchange) : Result<int>(client.error());
    if (!status || *status >= 300) {
      failed += (failed.empty() ? "" : ", ") + node.url;
    }
  }
  return failed.empty() ? JsonResponse("") : Unavailable("Not done at " + failed + ".");
}

HttpResponse Router::Health() const {
  Json up;
  up["prefill"] = 0;
  up["decode"] = 0;
  up["both"] = 0;
  for (const NodeState& node : nodes_.Nodes()) {
    Json& count = up[NodeRoleName(node.role)];
    count = count.get<int>() + (node.up ? 1 : 0);
  }
  const bool ok = !draining_ && (up["decode"] > 0 || up["both"] > 0);
  Json json;
  json["status"] = ok ? "ok" : draining_ ? "draining" : "no node that decodes is up";
  json["role"] = "router";
  json["nodes_up"] = std::move(up);
  return JsonResponse(Dump(json), ok ? 200 : 503);
}

HttpResponse Router::ListNodes() const {
  Json list = Json::array();
  for (const NodeState& node : nodes_.Nodes()) {
    Json entry;
    entry["url"] = node.url;
    entry["role"] = NodeRoleName(node.role);
    entry["up"] = node.up;
    if (!node.up) {
      entry["reason"] = node.reason;
    }
    if (!node.facts.kv_host.empty()) {
      entry["kv"] = node.facts.kv_host + ":" + std::to_string(node.facts.kv_port);
    }
    entry["engine_id"] = node.facts.engine_id;
    if (node.facts.events) {
      entry["kv_blocks"] = node.held_blocks.value_or(0);
    }
    entry["requests_running"] = node.running;
    entry["requests"] = node.requests;
    entry["failures"] = node.failures;
    list.push_back(std::move(entry));
  }
  return JsonResponse(Dump(Json{{"nodes", std::move(list)}}));
}

HttpResponse Router::JoinNode(const HttpRequest& request) {
  const Result<Json> body = ParseJson<Json>(request.body, {});
  const auto text = [&](const char* name) {
    return body && body->is_object() && body->contains(name) && (*body)[name].is_string()
               ? (*body)[name].get<std::string>()
               : std::string();
  };
  const Result<std::string> named = NormalUrl(text("url"));
  const std::optional<NodeRole> role = ParseNodeRole(text("role"));
  if (!named) {
    return BadRequest("Invalid value for 'url': " + named.error().message + ".", "url");
  }
  const std::string& url = *named;
  if (!role) {
    return BadRequest("Invalid value for 'role': must be prefill, decode or both.", "role");
  }
  int64_t lease_ms = 0;
  if (const auto lease = body->find("lease_ms"); lease != body->end()) {
    if (!lease->is_number_integer() || *lease < 1 || *lease > kMaxLeaseMs) {
      return BadRequest("Invalid value for 'lease_ms': must be an integer of milliseconds.",
                        "lease_ms");
    }
    lease_ms = lease->get<int64_t>();
  }
  if (nodes_.Join(url, *role, lease_ms * 1000)) {
    LogInfo("%s has joined as %s", url.c_str(), NodeRoleName(*role));
    if (options_.on_join) {
      options_.on_join();
    }
  }
  return JsonResponse(Dump(Json{{"url", url}, {"role", NodeRoleName(*role)}}));
}

HttpResponse Router::LeaveNode(const HttpRequest& request) {
  const Result<Json> body = ParseJson<Json>(request.body, {});
  if (!body || !body->is_object() || !body->contains("url") || !(*body)["url"].is_string()) {
    return BadRequest("'url' is required.", "url");
  }
  const auto given = (*body)["url"].get<std::string>();
  const Result<std::string> normal = NormalUrl(given);
  const std::string& url = normal ? *normal : given;
  if (!nodes_.Leave(url)) {
    ApiError error;
    error.status = 404;
    error.message = "There is no node " + url + ".";
    error.code = "not_found";
    return ErrorResponse(error);
  }
  LogInfo("%s has left", url.c_str());
  return JsonResponse(Dump(Json{{"url", url}}));
}

std::string Router::RenderMetrics() const {
  MetricsRegistry& registry = metrics_->registry;
  const std::map<uint64_t, events::FollowStats> follow =
      options_.follow_stats ? options_.follow_stats() : std::map<uint64_t, events::FollowStats>();
  for (const NodeState& node : nodes_.Nodes()) {
    const MetricsRegistry::Labels labels = {{"url", node.url}, {"role", NodeRoleName(node.role)}};
    registry.AddGauge("kvik:router_node_up", "Whether the node answers.", labels)
        .Set(node.up ? 1 : 0);
    registry
        .AddGauge("kvik:router_node_requests_running", "Requests that the router has there.",
                  labels)
        .Set(static_cast<double>(node.running));
    if (node.held_blocks) {
      registry.AddGauge("kvik:router_node_kv_blocks", "KV blocks that the node holds.", labels)
          .Set(static_cast<double>(*node.held_blocks));
    }
    const auto follows = follow.find(node.id);
    if (follows == follow.end()) {
      continue;
    }
    const events::FollowStats& stats = follows->second;
    registry
        .AddGauge("kvik:router_node_kv_events_up_to_date", "Whether no event is known to miss.",
                  labels)
        .Set(stats.up_to_date ? 1 : 0);
    metrics_->Count("kvik:router_kv_event_batches_total", "Batches of KV events, by node.",
                    node.url, stats.batches);
    metrics_->Count("kvik:router_kv_event_gaps_total", "Times that batches were missing.", node.url,
                    stats.gaps);
    metrics_->Count("kvik:router_kv_event_start_overs_total",
                    "Times that what a node holds was learned from nothing.", node.url,
                    stats.start_overs);
  }
  return registry.Render();
}

}  // namespace kvik::server
