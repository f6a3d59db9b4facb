// SPDX-License-Identifier: Apache-2.0
// transfer/stream.h: many conversations on one connection.
//
// A stream is opened by one side with a method and a request, carries messages in both directions
// and ends once both sides have finished, or at once when either cancels it, its deadline passes or
// the connection fails. Streams do not wait for each other: each has its own window.
//
// Threads: `Stream` and `Connection` are thread-safe and never wait. Sinks and handlers are called
// by the endpoint's thread, one at a time, and must not wait either; they may call everything here.
// (A stream opened on a connection that is gone ends within Open, on the caller's thread.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "transfer/buffer.h"
#include "transfer/byte_channel.h"
#include "transfer/hello.h"

namespace kvik::transfer {

// How a stream went, by this side's clock. For the goodput of a peer use wire_*: it counts only
// what came back to back, so a producer that is slower than the wire does not make the wire look
// slow.
struct StreamStats {
  int64_t opened_us = 0;
  int64_t first_message_us = 0;  // received; 0: none
  int64_t last_message_us = 0;
  uint64_t received_bytes = 0;  // payload
  uint64_t sent_bytes = 0;
  uint64_t wire_bytes = 0;  // of the connection in this time: received back to back,
  int64_t wire_us = 0;      // and how long that took
};

class StreamSink {
 public:
  virtual ~StreamSink() = default;
  virtual void OnMessage(Message message) = 0;
  // After Stream::Send returned kFull: there is room again.
  virtual void OnWritable() = 0;
  // Exactly once and last, however the stream ended. kTimeout: its deadline passed or the peer fell
  // silent; kUnavailable: the connection is gone; else what the side that cancelled said.
  virtual void OnEnd(const Result<void>& outcome, const StreamStats& stats) = 0;
};

enum class SendResult {
  kTaken,
  kFull,   // not taken: more than the limit waits to be sent; OnWritable will tell
  kEnded,  // not taken: the stream has ended or this side has finished
};

class Stream {
 public:
  virtual ~Stream() = default;
  // Messages larger than what the peer takes at once arrive as several of the same kind and tag,
  // all but the last with `more`. `message.last` is Finish after it.
  virtual SendResult Send(Message message) = 0;
  // As Send, but never kFull: for the few small messages between bulk ones.
  virtual SendResult SendAlways(Message message) = 0;
  // Nothing follows from this side.
  virtual void Finish() = 0;
  // Ends the stream on both sides; the peer's sink hears `error`. No effect once it has ended.
  virtual void Cancel(Error error) = 0;
};

struct OpenOptions {
  uint16_t method = 0;
  int64_t deadline_us = kNever;  // by the endpoint's clock; the peer is told what is left
  uint8_t priority = 128;        // what waits to be sent goes out lowest first, equals in turn
  bool request_only = true;      // this side sends nothing after the request
};

// The peer of a connection, from its handshake.
struct Peer {
  uint64_t connection = 0;  // unique within the endpoint
  std::string address;
  Hello hello;
};

struct ConnectionStats {
  uint64_t received_bytes = 0;  // with headers
  uint64_t sent_bytes = 0;
  uint64_t wire_bytes = 0;  // as in StreamStats, since the start
  int64_t wire_us = 0;
  int64_t rtt_us = 0;  // least of the recent heartbeats; 0: none yet
  size_t open_streams = 0;
  uint64_t streams_total = 0;
  uint64_t streams_failed = 0;
};

class Connection {
 public:
  virtual ~Connection() = default;
  [[nodiscard]] virtual const Peer& peer() const = 0;
  // `request` is at most what the peer takes in one frame, else the sink hears kInvalidInput. Never
  // fails here: whatever goes wrong ends the stream. Other threads than the endpoint's may find
  // that the sink is called before they have the stream in their hands.
  virtual std::shared_ptr<Stream> Open(const OpenOptions& options, SharedBytes request,
                                       std::shared_ptr<StreamSink> sink) = 0;
  [[nodiscard]] virtual bool alive() const = 0;
  [[nodiscard]] virtual ConnectionStats stats() const = 0;
  // Tells the peer to open no more streams here; those open go on.
  virtual void Drain(const std::string& reason) = 0;
  // Ends every stream with `error` and the connection.
  virtual void Close(Error error) = 0;
};

struct IncomingStream {
  uint16_t method = 0;
  int64_t deadline_us = kNever;  // by the endpoint's clock
  SharedBytes request;
  bool request_only = true;
  std::shared_ptr<Stream> stream;
  std::shared_ptr<Connection> connection;
};

// Who answers the streams that peers open.
class StreamHandler {
 public:
  virtual ~StreamHandler() = default;
  // The sink of the new stream. An error refuses it: the peer's sink hears it.
  virtual Result<std::shared_ptr<StreamSink>> OnStream(IncomingStream incoming) = 0;
  virtual void OnConnected(const std::shared_ptr<Connection>& connection) = 0;
  // After the last OnEnd of its streams. What a lost peer had leased is free again.
  virtual void OnDisconnected(const std::shared_ptr<Connection>& connection,
                              const Error& error) = 0;
};

}  // namespace kvik::transfer
