// SPDX-License-Identifier: Apache-2.0
// app/http_front.h: what every role of `kvik serve` begins and ends with: a port that is taken, a
// thread that serves it, and the wait until the process is asked to stop.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "app/stop_signals.h"
#include "base/clock.h"
#include "base/result.h"
#include "server/http.h"

namespace kvik::app {

// --host and its like.
struct HttpFrontOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0 = any free one
  std::string api_key;
  uint64_t max_body_bytes = uint64_t{32} << 20;
};

// Of the main thread.
class HttpFront {
 public:
  // Takes the port; nobody is answered yet. Call it before other threads are started: SIGTERM and
  // SIGINT are blocked in the whole process from here on. kUnavailable, kInvalidInput.
  static Result<std::unique_ptr<HttpFront>> Bind(const HttpFrontOptions& options);
  ~HttpFront();  // what is being answered is finished
  HttpFront(const HttpFront&) = delete;
  HttpFront& operator=(const HttpFront&) = delete;

  // "http://127.0.0.1:8000", with the port that was taken.
  [[nodiscard]] std::string url() const;

  // Serves from now on; once. `handle` outlives the front, and is called from many threads.
  void Serve(server::HttpHandler handle);

  // Waits until the process is asked to stop, or serving ends by itself: then false. `meanwhile` is
  // called now and then.
  bool WaitUntilAsked(const std::function<void()>& meanwhile = [] {});
  // Takes no more requests and waits for those that run. `hurry` is called at most once, when the
  // process is asked again.
  void Finish(const std::function<void()>& hurry = [] {});
  // The command's: 0, or kUnavailable when nobody `asked` for the end.
  [[nodiscard]] Result<int> Outcome(bool asked) const;

 private:
  explicit HttpFront(std::string host) : host_(std::move(host)) {}

  StopSignals signals_;
  const std::string host_;
  server::HttpHandler handle_;
  std::unique_ptr<server::HttpServer> http_;
  std::atomic<bool> done_{false};
  std::thread serving_;
};

// So that the ids of two runs, or of two servers, are not the same.
[[nodiscard]] uint64_t IdSeed(const Clock& clock);

}  // namespace kvik::app
