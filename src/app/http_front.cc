// SPDX-License-Identifier: Apache-2.0
#include "app/http_front.h"

#include <unistd.h>

#include <utility>

#include "base/host_port.h"
#include "base/log.h"
#include "server/openai_server.h"

namespace kvik::app {

Result<std::unique_ptr<HttpFront>> HttpFront::Bind(const HttpFrontOptions& options) {
  std::unique_ptr<HttpFront> front(new HttpFront(options.host));
  server::HttpServerOptions http;
  http.host = options.host;
  http.port = options.port;
  http.max_body_bytes = options.max_body_bytes;
  http.error_body = server::OpenAiServer::TransportError;
  KVIK_ASSIGN(front->http_,
              server::HttpServer::Bind(http, [raw = front.get()](const server::HttpRequest& r) {
                return raw->handle_(r);
              }));
  return front;
}

HttpFront::~HttpFront() { Finish(); }

std::string HttpFront::url() const {
  return "http://" + JoinHostPort(host_, std::to_string(http_->port()));
}

void HttpFront::Serve(server::HttpHandler handle) {
  handle_ = std::move(handle);
  serving_ = std::thread([this] {
    http_->Serve();
    done_ = true;
  });
}

bool HttpFront::WaitUntilAsked(const std::function<void()>& meanwhile) {
  return signals_.Wait(done_, meanwhile);
}

void HttpFront::Finish(const std::function<void()>& hurry) {
  if (!serving_.joinable()) {
    return;
  }
  http_->Shutdown();
  if (signals_.Wait(done_)) {
    hurry();
  }
  serving_.join();
}

Result<int> HttpFront::Outcome(bool asked) const {
  if (!asked) {
    return Err(ErrorCode::kUnavailable, "port %d stopped accepting connections", http_->port());
  }
  LogInfo("stopped");
  return 0;
}

uint64_t IdSeed(const Clock& clock) {
  return static_cast<uint64_t>(clock.NowMicros()) ^ (static_cast<uint64_t>(getpid()) << 40);
}

}  // namespace kvik::app
