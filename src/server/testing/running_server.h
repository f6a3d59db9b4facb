// SPDX-License-Identifier: Apache-2.0
// server/testing/running_server.h: a real HTTP server for tests.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "server/http.h"

namespace kvik::server::testing {

// On a free port, answering with `handler` until it goes out of scope.
class RunningServer {
 public:
  explicit RunningServer(HttpHandler handler, HttpServerOptions options = {}) {
    options.error_body = [](int status) { return "{\"status\":" + std::to_string(status) + "}"; };
    server_ = HttpServer::Bind(options, std::move(handler)).value();
    thread_ = std::thread([this] { server_->Serve(); });
  }
  ~RunningServer() {
    server_->Shutdown();
    thread_.join();
  }
  RunningServer(const RunningServer&) = delete;
  RunningServer& operator=(const RunningServer&) = delete;

  [[nodiscard]] int port() const { return server_->port(); }
  [[nodiscard]] std::string url() const { return "http://127.0.0.1:" + std::to_string(port()); }
  HttpServer& server() { return *server_; }

 private:
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

}  // namespace kvik::server::testing
