// SPDX-License-Identifier: Apache-2.0
#include "server/upstream.h"

#include <chrono>
#include <utility>

namespace kvik::server {
namespace {

// A node that is there accepts at once; one that is not must not hold its requests up.
constexpr int kConnectTimeoutS = 2;
constexpr int kReplyTimeoutS = 600;

}  // namespace

UpstreamCall::UpstreamCall(int number, std::string base_url, HttpExchange exchange,
                           std::shared_ptr<Queue> events)
    : number_(number), events_(std::move(events)) {
  Result<std::unique_ptr<HttpClient>> client =
      HttpClient::Create(base_url, "", kReplyTimeoutS, kConnectTimeoutS);
  if (!client) {
    UpstreamEvent event;
    event.error = client.error();
    Post(std::move(event));
    return;
  }
  client_ = *std::move(client);
  thread_ = std::thread([this, call = std::move(exchange)]() mutable { Run(std::move(call)); });
}

UpstreamCall::~UpstreamCall() {
  if (!thread_.joinable()) {
    return;
  }
  cancelled_ = true;
  // Cancelling reaches only what has a connection already, so it is repeated.
  constexpr std::chrono::milliseconds kPatience{10};
  std::optional<bool> ended;
  do {
    client_->Cancel();
    ended = ended_.PopFor(kPatience);
  } while (!ended);
  thread_.join();
}

void UpstreamCall::Run(HttpExchange exchange) {
  exchange.on_start = [this](int status, const std::string& content_type) {
    UpstreamEvent event;
    event.kind = UpstreamEvent::Kind::kStart;
    event.status = status;
    event.content_type = content_type;
    Post(std::move(event));
  };
  exchange.on_bytes = [this](std::string_view bytes) {
    UpstreamEvent event;
    event.kind = UpstreamEvent::Kind::kBytes;
    event.bytes = bytes;
    Post(std::move(event));
    return !cancelled_;
  };
  const Result<int> status = client_->Send(exchange);
  UpstreamEvent event;
  if (!status) {
    event.error = status.error();
  }
  Post(std::move(event));
  bool done = true;
  ended_.TryPush(done);
}

void UpstreamCall::Post(UpstreamEvent event) {
  event.call = number_;
  events_->TryPush(event);
}

}  // namespace kvik::server
