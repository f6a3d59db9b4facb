// SPDX-License-Identifier: Apache-2.0
// transfer/testing/recording.h: sinks and handlers that remember what they heard.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "transfer/stream.h"

namespace kvik::transfer::testing {

// Keeps bytes, not buffers, unless told to hold them.
class RecordingSink final : public StreamSink {
 public:
  void OnMessage(Message message) override {
    KVIK_CHECK(!outcome, "a message after the end");
    ++messages;
    last = last || message.last;
    const auto span = message.bytes.span();
    bytes.insert(bytes.end(), span.begin(), span.end());
    if (on_message) {
      on_message(message);
    }
    if (hold) {
      held.push_back(std::move(message));
    }
  }
  void OnWritable() override {
    ++writable;
    if (on_writable) {
      on_writable();
    }
  }
  void OnEnd(const Result<void>& end, const StreamStats& end_stats) override {
    KVIK_CHECK(!outcome, "a second end");
    outcome = end;
    stats = end_stats;
    on_writable = nullptr;
    on_message = nullptr;
    stream.reset();
  }
  [[nodiscard]] bool ended() const { return outcome.has_value(); }
  [[nodiscard]] bool ok() const { return outcome && outcome->has_value(); }
  // REQUIRES: ended, and not well.
  [[nodiscard]] ErrorCode code() const { return outcome->error().code; }

  bool hold = false;
  std::function<void(const Message&)> on_message;
  std::function<void()> on_writable;
  std::vector<std::byte> bytes;
  std::vector<Message> held;
  size_t messages = 0;
  size_t writable = 0;
  bool last = false;
  std::optional<Result<void>> outcome;
  StreamStats stats;
  std::shared_ptr<Stream> stream;  // of a handler's side, for the test to use
};

// Remembers every stream that peers open; `on_stream` may do something with it.
class RecordingHandler final : public StreamHandler {
 public:
  Result<std::shared_ptr<StreamSink>> OnStream(IncomingStream incoming) override {
    if (refuse) {
      return *refuse;
    }
    auto sink = std::make_shared<RecordingSink>();
    sink->stream = incoming.stream;
    sink->hold = hold;
    requests.emplace_back(incoming.request.span().begin(), incoming.request.span().end());
    deadlines_us.push_back(incoming.deadline_us);
    methods.push_back(incoming.method);
    sinks.push_back(sink);
    if (on_stream) {
      on_stream(incoming, sink);
    }
    return std::shared_ptr<StreamSink>(sink);
  }
  void OnConnected(const std::shared_ptr<Connection>& connection) override {
    connections.push_back(connection);
  }
  void OnDisconnected(const std::shared_ptr<Connection>& connection, const Error& error) override {
    std::erase(connections, connection);
    last_error = error;
  }

  std::function<void(const IncomingStream&, const std::shared_ptr<RecordingSink>&)> on_stream;
  std::optional<Error> refuse;
  bool hold = false;
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  std::vector<std::vector<std::byte>> requests;
  std::vector<int64_t> deadlines_us;
  std::vector<uint16_t> methods;
  std::vector<std::shared_ptr<Connection>> connections;
  Error last_error;
};

}  // namespace kvik::transfer::testing
