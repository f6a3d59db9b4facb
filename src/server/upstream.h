// SPDX-License-Identifier: Apache-2.0
// server/upstream.h: a call to another server, on a thread of its own, whose progress comes through
// a queue: so that a handler can follow several calls at once and still notice that its client
// left.
#pragma once

#include <atomic>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/bounded_queue.h"
#include "base/result.h"
#include "server/http.h"

namespace kvik::server {

struct UpstreamEvent {
  enum class Kind {
    kStart,  // the head of the reply: status, content_type
    kBytes,  // of the body
    kEnd,    // the last event: error, if the call broke
  };
  int call = 0;  // which one, as its maker numbered it
  Kind kind = Kind::kEnd;
  int status = 0;
  std::string content_type;
  std::string bytes;
  std::optional<Error> error;
};

class UpstreamCall {
 public:
  using Queue = BoundedQueue<UpstreamEvent>;
  static std::shared_ptr<Queue> MakeQueue() {
    return std::make_shared<Queue>(std::numeric_limits<size_t>::max());
  }

  // Begins at once. `exchange`'s callbacks are not used. A URL that is none is an event, too.
  UpstreamCall(int number, std::string base_url, HttpExchange exchange,
               std::shared_ptr<Queue> events);
  // Breaks the call unless it has ended.
  ~UpstreamCall();
  UpstreamCall(const UpstreamCall&) = delete;
  UpstreamCall& operator=(const UpstreamCall&) = delete;

 private:
  void Run(HttpExchange exchange);
  void Post(UpstreamEvent event);

  const int number_;
  const std::shared_ptr<Queue> events_;
  std::unique_ptr<HttpClient> client_;  // null: not a URL
  std::atomic<bool> cancelled_{false};
  BoundedQueue<bool> ended_{1};
  std::thread thread_;
};

}  // namespace kvik::server
