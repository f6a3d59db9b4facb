// SPDX-License-Identifier: Apache-2.0
#include "server/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "server/block_holders.h"
#include "server/node_prober.h"
#include "server/testing/running_server.h"

namespace kvik::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;
using Json = nlohmann::json;

constexpr const char* kPath = "/v1/completions";

// A server behind the router that keeps what it was sent.
class FakeNode {
 public:
  explicit FakeNode(std::function<HttpResponse(const HttpRequest&)> answer)
      : answer_(std::move(answer)), server_([this](const HttpRequest& request) {
          {
            MutexLock lock(mutex_);
            bodies_.push_back(Json::parse(request.body, nullptr, false));
            const std::string* id = request.Header("X-Request-Id");
            ids_.push_back(id == nullptr ? "" : *id);
          }
          return answer_(request);
        }) {}
  [[nodiscard]] std::string url() const { return server_.url(); }
  [[nodiscard]] std::vector<Json> bodies() const {
    MutexLock lock(mutex_);
    return bodies_;
  }
  [[nodiscard]] std::vector<std::string> ids() const {
    MutexLock lock(mutex_);
    return ids_;
  }

 private:
  mutable Mutex mutex_;
  std::vector<Json> bodies_ KVIK_GUARDED_BY(mutex_);
  std::vector<std::string> ids_ KVIK_GUARDED_BY(mutex_);
  std::function<HttpResponse(const HttpRequest&)> answer_;
  testing::RunningServer server_;  // last: it calls the others
};

// Answers every connection with these bytes and ends it.
class BreakingServer {
 public:
  explicit BreakingServer(std::string bytes) : bytes_(std::move(bytes)) {
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(fd_, 8), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] {
      for (int peer = accept(fd_, nullptr, nullptr); peer >= 0;
           peer = accept(fd_, nullptr, nullptr)) {
        std::string request(65536, ' ');
        EXPECT_GT(recv(peer, request.data(), request.size(), 0), 0);
        EXPECT_GT(send(peer, bytes_.data(), bytes_.size(), MSG_NOSIGNAL), 0);
        shutdown(peer, SHUT_WR);
        while (recv(peer, request.data(), request.size(), 0) > 0) {
        }
        close(peer);
      }
    });
  }
  ~BreakingServer() {
    shutdown(fd_, SHUT_RDWR);
    thread_.join();
    close(fd_);
  }
  [[nodiscard]] std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

 private:
  const std::string bytes_;
  int fd_ = -1;
  int port_ = 0;
  std::thread thread_;
};

HttpResponse Say(int status, const std::string& body) {
  HttpResponse response;
  response.status = status;
  response.body = body;
  return response;
}
HttpResponse Events(std::function<void(HttpStream&)> stream) {
  HttpResponse response;
  response.content_type = "text/event-stream; charset=utf-8";
  response.stream = std::move(stream);
  return response;
}
HttpResponse Accepts(const HttpRequest&) {
  return Events([](HttpStream& out) { out.Write("data: {}\n\ndata: [DONE]\n\n"); });
}
HttpResponse Answers(const HttpRequest&) { return Say(200, R"({"text":"fine"})"); }
void WaitUntilGone(const std::function<bool()>& gone) {
  while (!gone()) {
    std::this_thread::yield();
  }
}

class RouterTest : public ::testing::Test {
 protected:
  explicit RouterTest(const BlockHolders* holders = nullptr) : nodes_(clock_, 1000, holders) {}
  void Add(const std::string& url, NodeRole role, int32_t kv_port = 7) {
    nodes_.Join(url, role, 0);
    nodes_.Up(url, {.engine_id = std::to_string(kv_port),
                    .kv_host = "10.0.0.1",
                    .kv_port = kv_port,
                    .events = {}});
  }
  // A URL that nobody listens on.
  static std::string DeadUrl() { return testing::RunningServer(Answers).url(); }
  static HttpRequest Request(const std::string& method, const std::string& path, const Json& body) {
    HttpRequest request;
    request.method = method;
    request.path = path;
    request.body = body.is_null() ? "" : body.dump();
    request.client_gone = [] { return false; };
    return request;
  }
  HttpResponse Send(const Json& body, RouterOptions options = {}) {
    Router router(options, nodes_, clock_);
    return router.Handle(Request("POST", kPath, body));
  }
  NodeState StateOf(const std::string& url) {
    for (const NodeState& node : nodes_.Nodes()) {
      if (node.url == url) {
        return node;
      }
    }
    return {};
  }

  ManualClock clock_;
  NodeTable nodes_;
};

class Collector final : public HttpStream {
 public:
  bool Write(std::string_view bytes) override {
    all += bytes;
    return !gone;
  }
  [[nodiscard]] bool client_gone() const override { return gone; }
  std::string all;
  bool gone = false;
};

TEST_F(RouterTest, ThePromptIsComputedOnOneNodeAndTheAnswerOnAnother) {
  FakeNode prefill(Accepts);
  FakeNode decode(Answers);
  Add(prefill.url(), NodeRole::kPrefill, 41);
  Add(decode.url(), NodeRole::kDecode, 42);
  const HttpResponse reply = Send({{"prompt", "hello"},
                                   {"max_tokens", 50},
                                   {"min_tokens", 3},
                                   {"n", 2},
                                   {"temperature", 0},
                                   {"kvik", {{"forced_token_ids", {1, 2}}, {"workload", "qa"}}}});
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, R"({"text":"fine"})");
  ASSERT_THAT(prefill.bodies(), SizeIs(1));
  const Json first = prefill.bodies()[0];
  EXPECT_EQ(first["prompt"], "hello");
  EXPECT_EQ(first["max_tokens"], 1);
  EXPECT_EQ(first["stream"], true);
  EXPECT_FALSE(first.contains("min_tokens"));
  EXPECT_FALSE(first.contains("n"));
  EXPECT_EQ(first["kvik"], (Json{{"workload", "qa"}}));
  EXPECT_EQ(first["kv_transfer_params"]["do_remote_decode"], true);
  EXPECT_EQ(first["kv_transfer_params"]["do_remote_prefill"], false);
  ASSERT_THAT(decode.bodies(), SizeIs(1));
  const Json second = decode.bodies()[0];
  EXPECT_EQ(second["max_tokens"], 50);
  EXPECT_EQ(second["n"], 2);
  EXPECT_EQ(second["kv_transfer_params"], (Json{{"do_remote_prefill", true},
                                                {"do_remote_decode", false},
                                                {"remote_host", "10.0.0.1"},
                                                {"remote_port", 41},
                                                {"remote_engine_id", "41"},
                                                {"remote_request_id", prefill.ids()[0]}}));
  EXPECT_EQ(prefill.ids(), decode.ids());
}

TEST_F(RouterTest, OnTheNextTurnThePrefillNodeComesForWhatTheDecodeNodeHas) {
  FakeNode prefill(Accepts);
  FakeNode decode(Answers);
  Add(prefill.url(), NodeRole::kPrefill, 41);
  Add(decode.url(), NodeRole::kDecode, 42);
  const std::string prompt(2000, 'x');
  // The decode node had it without the prefill node's help.
  nodes_.Down(prefill.url(), "for now");
  Send({{"prompt", prompt}});
  EXPECT_FALSE(decode.bodies()[0].contains("kv_transfer_params"));
  nodes_.Up(prefill.url(), StateOf(prefill.url()).facts);
  Send({{"prompt", prompt + " and more"}});
  ASSERT_THAT(prefill.bodies(), SizeIs(1));
  const Json params = prefill.bodies()[0]["kv_transfer_params"];
  EXPECT_EQ(params["do_remote_prefill"], true);
  EXPECT_EQ(params["do_remote_decode"], true);
  EXPECT_EQ(params["remote_port"], 42);
}

TEST_F(RouterTest, WhatThePrefillNodeRefusesIsRefused) {
  FakeNode prefill([](const HttpRequest&) { return Say(400, R"({"error":"too long"})"); });
  FakeNode decode(Answers);
  Add(prefill.url(), NodeRole::kPrefill);
  Add(decode.url(), NodeRole::kDecode);
  const HttpResponse reply = Send({{"prompt", "x"}});
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.body, R"({"error":"too long"})");
  EXPECT_THAT(decode.bodies(), IsEmpty());
  EXPECT_TRUE(StateOf(prefill.url()).up);
}

TEST_F(RouterTest, WithoutAPrefillNodeTheDecodeNodeComputesOrNobodyDoes) {
  const std::string dead = DeadUrl();
  FakeNode broken([](const HttpRequest&) { return Say(500, "{}"); });
  FakeNode decode(Answers);
  Add(decode.url(), NodeRole::kDecode);
  for (const bool fail : {false, true}) {
    Add(dead, NodeRole::kPrefill);
    Add(broken.url(), NodeRole::kPrefill);
    RouterOptions options;
    options.fail_without_prefill = fail;
    const HttpResponse reply = Send({{"prompt", "x"}}, options);
    EXPECT_EQ(reply.status, fail ? 503 : 200) << reply.body;
    EXPECT_FALSE(StateOf(dead).up);
    EXPECT_TRUE(StateOf(broken.url()).up) << "it answers";
  }
  ASSERT_THAT(decode.bodies(), SizeIs(1));
  EXPECT_FALSE(decode.bodies()[0].contains("kv_transfer_params"));
  EXPECT_THAT(broken.bodies(), SizeIs(2));
}

TEST_F(RouterTest, ADecodeNodeThatIsGoneIsReplaced) {
  const std::string dead = DeadUrl();
  FakeNode busy([](const HttpRequest&) { return Say(503, R"({"error":"busy"})"); });
  Add(dead, NodeRole::kDecode);
  Add(busy.url(), NodeRole::kDecode);
  const HttpResponse refused = Send({{"prompt", "x"}});
  EXPECT_EQ(refused.status, 503);
  EXPECT_FALSE(StateOf(dead).up);
  FakeNode decode(Answers);
  Add(decode.url(), NodeRole::kDecode);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(Send({{"prompt", std::to_string(i)}}).status, 200);
  }
}

// A node that has stopped: it keeps the connection, says nothing, and does not answer the prober.
class StoppedNode {
 public:
  StoppedNode(NodeTable& nodes, ManualClock& clock, std::string said = {})
      : node_([&nodes, &clock, said, this](const HttpRequest& request) {
          const auto stand_still = [&nodes, &clock, this](const std::function<bool()>& gone) {
            nodes.Down(node_.url(), "no answer");
            WaitUntilGone([&] {
              clock.Advance(100'000);
              return gone();
            });
          };
          if (said.empty()) {
            stand_still(request.client_gone);
            return Say(500, "");
          }
          return Events([said, stand_still](HttpStream& out) {
            out.Write(said);
            stand_still([&] { return out.client_gone(); });
          });
        }) {}
  [[nodiscard]] std::string url() const { return node_.url(); }

 private:
  FakeNode node_;
};

TEST_F(RouterTest, APrefillNodeThatStandsStillIsDoneWithout) {
  FakeNode decode(Answers);
  Add(decode.url(), NodeRole::kDecode);
  {
    StoppedNode stopped(nodes_, clock_);
    Add(stopped.url(), NodeRole::kPrefill);
    EXPECT_EQ(Send({{"prompt", "x"}}).status, 200);
    EXPECT_EQ(StateOf(stopped.url()).failures, 1);
    EXPECT_EQ(StateOf(stopped.url()).running, 0);
  }
  ASSERT_THAT(decode.bodies(), SizeIs(1));
  EXPECT_FALSE(decode.bodies()[0].contains("kv_transfer_params"));
}

TEST_F(RouterTest, ADecodeNodeThatStandsStillIsReplaced) {
  StoppedNode stopped(nodes_, clock_);
  Add(stopped.url(), NodeRole::kDecode);
  EXPECT_EQ(Send({{"prompt", "x"}}).status, 503);
  EXPECT_EQ(StateOf(stopped.url()).failures, 1);
  FakeNode decode(Answers);
  Add(decode.url(), NodeRole::kDecode);
  Add(stopped.url(), NodeRole::kDecode);
  // Until one has gone there first.
  for (int i = 0; StateOf(stopped.url()).failures < 2; ++i) {
    EXPECT_EQ(Send({{"prompt", i}}).status, 200);
  }
  EXPECT_FALSE(StateOf(stopped.url()).up);
  EXPECT_EQ(StateOf(stopped.url()).running, 0);
}

TEST_F(RouterTest, AStreamOfANodeThatStandsStillEndsWithAnError) {
  StoppedNode stopped(nodes_, clock_, "data: {\"text\":\"so far\"}\n\n");
  Add(stopped.url(), NodeRole::kBoth);
  Router router({}, nodes_, clock_);
  const HttpResponse reply =
      router.Handle(Request("POST", kPath, {{"prompt", "x"}, {"stream", true}}));
  ASSERT_TRUE(reply.stream);
  Collector out;
  reply.stream(out);
  EXPECT_THAT(out.all, StartsWith("data: {\"text\":\"so far\"}"));
  EXPECT_THAT(out.all, HasSubstr("error"));
  EXPECT_TRUE(out.all.ends_with("data: [DONE]\n\n"));
}

TEST_F(RouterTest, ANodeThatIsUpIsWaitedForHoweverLongItTakes) {
  FakeNode slow([&](const HttpRequest&) {
    for (int second = 0; second < 3600; ++second) {
      clock_.Advance(1'000'000);
    }
    return Say(200, R"({"text":"at last"})");
  });
  FakeNode other(Answers);
  Add(slow.url(), NodeRole::kBoth);
  EXPECT_EQ(Send({{"prompt", "x"}}).body, R"({"text":"at last"})");
}

TEST_F(RouterTest, OtherRequestsAreNotLostAtANodeThatStandsStill) {
  StoppedNode stopped(nodes_, clock_);
  Add(stopped.url(), NodeRole::kBoth);
  Router router({}, nodes_, clock_);
  EXPECT_EQ(router.Handle(Request("GET", "/v1/models", {})).status, 503);
  Add(stopped.url(), NodeRole::kBoth);
  nodes_.Down(stopped.url(), "no answer");
  const HttpResponse reset = router.Handle(Request("POST", "/reset_prefix_cache", {}));
  EXPECT_EQ(reset.status, 503);
  EXPECT_THAT(reset.body, HasSubstr(stopped.url()));
}

TEST_F(RouterTest, TheClientsErrorsAreNotTriedElsewhere) {
  std::atomic<int> calls{0};
  const auto refuse = [&](const HttpRequest&) {
    ++calls;
    return Say(400, R"({"error":"bad"})");
  };
  FakeNode one(refuse);
  FakeNode two(refuse);
  Add(one.url(), NodeRole::kBoth);
  Add(two.url(), NodeRole::kBoth);
  EXPECT_EQ(Send({{"prompt", "x"}}).status, 400);
  EXPECT_EQ(calls, 1);
}

TEST_F(RouterTest, ServersThatDoBothGetWholeRequests) {
  FakeNode prefill(Accepts);
  FakeNode both(Answers);
  Add(prefill.url(), NodeRole::kPrefill);
  Add(both.url(), NodeRole::kBoth);
  EXPECT_EQ(Send({{"prompt", "x"}}).status, 200);
  EXPECT_THAT(prefill.bodies(), IsEmpty());
  EXPECT_FALSE(both.bodies()[0].contains("kv_transfer_params"));
}

TEST_F(RouterTest, WhoArrangesTheTransferHimselfIsLeftAlone) {
  FakeNode prefill(Accepts);
  FakeNode decode(Answers);
  Add(prefill.url(), NodeRole::kPrefill);
  Add(decode.url(), NodeRole::kDecode);
  const Json mine = {{"do_remote_prefill", true}, {"remote_host", "me"}, {"remote_port", 1}};
  EXPECT_EQ(Send({{"prompt", "x"}, {"kv_transfer_params", mine}}).status, 200);
  EXPECT_THAT(prefill.bodies(), IsEmpty());
  EXPECT_EQ(decode.bodies()[0]["kv_transfer_params"], mine);
}

TEST_F(RouterTest, AStreamIsPassedOnAsItComes) {
  std::latch first_read(1);
  FakeNode decode([&](const HttpRequest&) {
    return Events([&](HttpStream& out) {
      out.Write("data: 1\n\n");
      first_read.wait();
      out.Write("data: [DONE]\n\n");
    });
  });
  Add(decode.url(), NodeRole::kDecode);
  class Waiting final : public HttpStream {
   public:
    explicit Waiting(std::latch& read) : read_(read) {}
    bool Write(std::string_view bytes) override {
      if (all.empty()) {
        read_.count_down();
      }
      all += bytes;
      return true;
    }
    [[nodiscard]] bool client_gone() const override { return false; }
    std::string all;

   private:
    std::latch& read_;
  } out(first_read);
  Router router({}, nodes_, clock_);
  HttpResponse reply = router.Handle(Request("POST", kPath, {{"prompt", "x"}, {"stream", true}}));
  EXPECT_EQ(reply.content_type, "text/event-stream; charset=utf-8");
  reply.stream(out);
  EXPECT_EQ(out.all, "data: 1\n\ndata: [DONE]\n\n");
  EXPECT_EQ(StateOf(decode.url()).running, 0);
}

TEST_F(RouterTest, AStreamThatBreaksEndsWithAnError) {
  BreakingServer decode(
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
      "9\r\ndata: 1\n\n\r\n");
  Add(decode.url(), NodeRole::kDecode);
  Router router({}, nodes_, clock_);
  HttpResponse reply = router.Handle(Request("POST", kPath, {{"prompt", "x"}, {"stream", true}}));
  Collector out;
  reply.stream(out);
  EXPECT_THAT(out.all, StartsWith("data: 1\n\n"));
  EXPECT_THAT(out.all, HasSubstr("\"error\""));
  EXPECT_THAT(out.all, HasSubstr("data: [DONE]"));
  EXPECT_FALSE(StateOf(decode.url()).up);
}

TEST_F(RouterTest, AnAnswerThatBreaksIsAskedForElsewhere) {
  BreakingServer broken(
      "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"te");
  FakeNode decode(Answers);
  Add(broken.url(), NodeRole::kDecode);
  Router router({}, nodes_, clock_);
  EXPECT_EQ(router.Handle(Request("POST", kPath, {{"prompt", "x"}})).status, 503);
  nodes_.Up(broken.url(), {});
  Add(decode.url(), NodeRole::kDecode);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(router.Handle(Request("POST", kPath, {{"prompt", std::to_string(i)}})).body,
              R"({"text":"fine"})");
    nodes_.Up(broken.url(), {});
  }
}

TEST_F(RouterTest, AClientThatLeavesEndsBothCalls) {
  std::latch entered(2);
  std::atomic<int> ended{0};
  const auto hang = [&](const HttpRequest&) {
    return Events([&](HttpStream& out) {
      out.Write(": here\n\n");
      entered.count_down();
      WaitUntilGone([&] { return out.client_gone(); });
      ++ended;
    });
  };
  {
    FakeNode prefill(hang);
    FakeNode decode(hang);
    Add(prefill.url(), NodeRole::kPrefill);
    Add(decode.url(), NodeRole::kDecode);
    Router router({}, nodes_, clock_);
    HttpResponse reply = router.Handle(Request("POST", kPath, {{"prompt", "x"}, {"stream", true}}));
    entered.wait();
    Collector out;
    out.gone = true;
    reply.stream(out);
    EXPECT_EQ(StateOf(prefill.url()).running, 0);
    EXPECT_EQ(StateOf(decode.url()).running, 0);
  }  // the nodes' handlers end
  EXPECT_EQ(ended, 2);
}

TEST_F(RouterTest, AClientThatLeavesBeforeTheAnswerEndsTheCall) {
  std::latch entered(1);
  {
    FakeNode decode([&](const HttpRequest& request) {
      entered.count_down();
      WaitUntilGone(request.client_gone);
      return Say(200, "{}");
    });
    Add(decode.url(), NodeRole::kDecode);
    Router router({}, nodes_, clock_);
    HttpRequest request = Request("POST", kPath, {{"prompt", "x"}});
    request.client_gone = [&] { return entered.try_wait(); };
    EXPECT_EQ(router.Handle(request).status, 503);
    EXPECT_EQ(StateOf(decode.url()).running, 0);
  }
}

TEST_F(RouterTest, NodesJoinAndLeaveOverHttp) {
  std::atomic<int> joined{0};
  RouterOptions options;
  options.api_key = "secret";
  options.on_join = [&] { ++joined; };
  Router router(options, nodes_, clock_);
  const auto send = [&](const char* method, const Json& body, const char* key = "Bearer secret") {
    HttpRequest request = Request(method, "/nodes", body);
    request.headers = {{"Authorization", key}};
    return router.Handle(request);
  };
  const Json node = {{"url", "http://127.0.0.1:1"}, {"role", "decode"}, {"lease_ms", 1000}};
  EXPECT_EQ(send("POST", node, "Bearer other").status, 401);
  EXPECT_EQ(send("POST", node).status, 200);
  EXPECT_EQ(send("POST", node).status, 200);
  EXPECT_EQ(joined, 1);
  EXPECT_EQ(send("POST", {{"url", "nonsense"}, {"role", "decode"}}).status, 400);
  EXPECT_EQ(send("POST", {{"url", "http://x"}, {"role", "king"}}).status, 400);
  EXPECT_EQ(send("POST", {{"url", "http://x"}, {"role", "both"}, {"lease_ms", -1}}).status, 400);
  EXPECT_EQ(send("POST", Json()).status, 400);
  const Json list = Json::parse(send("GET", Json()).body);
  ASSERT_THAT(list["nodes"], SizeIs(1));
  EXPECT_EQ(list["nodes"][0]["role"], "decode");
  EXPECT_EQ(list["nodes"][0]["up"], false);
  EXPECT_EQ(send("DELETE", node).status, 200);
  EXPECT_EQ(send("DELETE", node).status, 404);
  EXPECT_THAT(nodes_.Nodes(), IsEmpty());
}

TEST_F(RouterTest, HealthSaysWhetherAnybodyCanAnswer) {
  Router router({}, nodes_, clock_);
  const auto health = [&] { return router.Handle(Request("GET", "/health", Json())).status; };
  EXPECT_EQ(health(), 503);
  Add("http://p", NodeRole::kPrefill);
  EXPECT_EQ(health(), 503);
  Add("http://d", NodeRole::kDecode);
  EXPECT_EQ(health(), 200);
  EXPECT_THAT(router.Handle(Request("GET", "/metrics", Json())).body,
              HasSubstr("kvik:router_node_up{role=\"decode\",url=\"http://d\"} 1"));
  router.Drain();
  EXPECT_EQ(health(), 503);
}

TEST_F(RouterTest, OtherRequestsGoToAnyNode) {
  const std::string dead = DeadUrl();
  FakeNode decode(
      [](const HttpRequest& request) { return Say(200, request.method + request.path); });
  Add(dead, NodeRole::kDecode);
  Add(decode.url(), NodeRole::kDecode);
  Router router({}, nodes_, clock_);
  EXPECT_EQ(router.Handle(Request("GET", "/v1/models", Json())).body, "GET/v1/models");
  EXPECT_EQ(router.Handle(Request("POST", "/tokenize", Json::object())).body, "POST/tokenize");
}

// Two nodes whose KV events are heard.
class FollowingRouterTest : public RouterTest {
 protected:
  FollowingRouterTest() : RouterTest(&holders_) {}
  void Hold(const std::string& url, std::vector<uint64_t> blocks) {
    const events::ReceivedEvent event = {kv::BlockEventKind::kStored, kv::BlockMedium::kCache,
                                         std::move(blocks)};
    holders_.OnEvents(StateOf(url).id, {&event, 1});
  }
  // Names blocks 1, 2, ... of any prompt as `names` says, and answers.
  static std::function<HttpResponse(const HttpRequest&)> Names(
      std::function<HttpResponse()> names) {
    return [names = std::move(names)](const HttpRequest& request) {
      return request.path == std::string("/kv/blocks") + kPath ? names() : Answers(request);
    };
  }
  static HttpResponse Eight() {
    return Say(200, R"({"num_tokens":130,"block_size":16,"block_hashes":[1,2,3,4,5,6,7,8]})");
  }

  BlockHolders holders_{1000};
};

TEST_F(FollowingRouterTest, APromptGoesToTheNodeThatHasItWhoeverPutItThere) {
  for (int i = 0; i < 8; ++i) {
    FakeNode one(Names(Eight));
    FakeNode two(Names(Eight));
    Add(one.url(), NodeRole::kBoth, 1);
    Add(two.url(), NodeRole::kBoth, 2);
    Hold(one.url(), {100});
    Hold(two.url(), {1, 2, 3, 4, 5, 6, 7, 8});
    Send({{"prompt", "prompt " + std::to_string(i)}});
    const size_t asked = one.bodies().size() + two.bodies().size();
    EXPECT_EQ(asked, 2U);  // for the names, and for the answer
    EXPECT_EQ(StateOf(one.url()).requests, 0);
    EXPECT_EQ(StateOf(two.url()).requests, 1);
    nodes_.Leave(one.url());
    nodes_.Leave(two.url());
  }
}

TEST_F(FollowingRouterTest, WithoutUsableNamesPromptsGoByTheirText) {
  for (const std::function<HttpResponse()>& names : std::vector<std::function<HttpResponse()>>{
           [] { return Say(404, "{}"); }, [] { return Say(200, "no JSON"); },
           [] { return Say(200, R"({"num_tokens":130,"block_size":16,"block_hashes":[1]})"); },
           [] { return Say(200, R"({"num_tokens":16,"block_size":16,"block_hashes":["1"]})"); },
           [] { return Say(200, R"({"num_tokens":130,"block_size":0,"block_hashes":[]})"); }}) {
    FakeNode one(Names(names));
    FakeNode two(Names(names));
    Add(one.url(), NodeRole::kBoth, 1);
    Add(two.url(), NodeRole::kBoth, 2);
    Hold(one.url(), {1});
    Hold(two.url(), {2});
    const auto requests = [&](const std::string& url) { return StateOf(url).requests; };
    EXPECT_EQ(Send({{"prompt", "text"}}).status, 200);
    EXPECT_EQ(Send({{"prompt", "text"}}).status, 200);
    EXPECT_EQ(std::max(requests(one.url()), requests(two.url())), 2);  // both at one
    nodes_.Leave(one.url());
    nodes_.Leave(two.url());
  }
}

TEST_F(FollowingRouterTest, ANodeThatDoesNotSayNamesSoonIsNotWaitedFor) {
  std::latch answered(1);
  FakeNode one(Names([&] {
    answered.wait();
    return Eight();
  }));
  FakeNode two(Names([&] {
    answered.wait();
    return Eight();
  }));
  Add(one.url(), NodeRole::kBoth, 1);
  Add(two.url(), NodeRole::kBoth, 2);
  Hold(one.url(), {1});
  Router router({}, nodes_, clock_);
  const HttpRequest request = Request("POST", kPath, {{"prompt", "text"}});
  // The call for names is broken with the request: it must be able to end.
  std::thread late([&] {
    while (StateOf(one.url()).requests + StateOf(two.url()).requests == 0) {
      std::this_thread::yield();
    }
    answered.count_down();
  });
  EXPECT_EQ(router.Handle(request).status, 200);
  late.join();
  const std::string metrics = router.Handle(Request("GET", "/metrics", nullptr)).body;
  EXPECT_THAT(metrics, HasSubstr("kvik:router_block_lookups_total{outcome=\"failed\"} 1"));
  // And for a while nobody is asked.
  const size_t before = one.bodies().size() + two.bodies().size();
  EXPECT_EQ(router.Handle(request).status, 200);
  EXPECT_EQ(one.bodies().size() + two.bodies().size(), before + 1);
}

TEST(ParseHealth, TellsWhereKvEventsArePublished) {
  const auto facts = [](const std::string& events) {
    return ParseHealth(R"({"engine_id":"e","kv_events":)" + events + "}", "http://10.1.1.1:80");
  };
  const auto whole = facts(
      R"({"endpoint":"tcp://0.0.0.0:5557","replay_endpoint":"tcp://10.0.0.2:5558","topic":"t"})");
  ASSERT_TRUE(whole && whole->events);
  EXPECT_EQ(*whole->events,
            (events::EventSource{"tcp://10.1.1.1:5557", "tcp://10.0.0.2:5558", "t", "e"}));
  const auto less = facts(R"({"endpoint":"ipc:///tmp/x","topic":7})");
  ASSERT_TRUE(less && less->events);
  EXPECT_EQ(*less->events, (events::EventSource{"ipc:///tmp/x", std::nullopt, "", "e"}));
  for (const char* none : {"7", "{}", R"({"endpoint":5})", R"({"endpoint":"tcp://"})",
                           R"({"endpoint":"pgm://x:1"})"}) {
    const auto node = facts(none);
    ASSERT_TRUE(node.has_value()) << none;
    EXPECT_FALSE(node->events) << none;
  }
}

TEST(ParseHealth, TakesWhatNodesSayAndNothingElse) {
  const auto plain = ParseHealth("", "http://10.1.1.1:80");
  ASSERT_TRUE(plain.has_value());
  EXPECT_EQ(plain->kv_port, 0);
  const auto node = ParseHealth(
      R"({"status":"ok","role":"prefill","engine_id":"x","kv":{"host":"0.0.0.0","port":99}})",
      "http://10.1.1.1:80/base");
  ASSERT_TRUE(node.has_value());
  EXPECT_EQ(node->kv_host, "10.1.1.1");
  EXPECT_EQ(node->kv_port, 99);
  EXPECT_EQ(node->engine_id, "x");
  for (const char* bad : {"[]", "{", R"({"kv":{"host":"h"}})", R"({"kv":{"host":"h","port":0}})",
                          R"({"kv":{"host":"h","port":"1"}})", R"({"kv":{"port":70000}})"}) {
    EXPECT_FALSE(ParseHealth(bad, "http://x").has_value()) << bad;
  }
}

}  // namespace
}  // namespace kvik::server
