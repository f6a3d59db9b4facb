// SPDX-License-Identifier: Apache-2.0
// transfer/endpoint.h: a process's place in the network: accepts and makes connections, and has the
// one thread that moves the bytes of all of them.
//
// Addresses are "host:port" or "kvik://host:port". Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "transfer/emulated_link.h"
#include "transfer/hello.h"
#include "transfer/stream.h"

namespace kvik::transfer {

// Limits of a connection. Memory of one is at most about streams * (window + send_buffer).
struct ConnectionLimits {
  size_t max_frame_bytes = size_t{256} << 10;  // payload of a frame this side takes, with hello
  size_t window_bytes = size_t{4} << 20;       // received and not dropped, each stream
  size_t send_buffer_bytes = size_t{4} << 20;  // taken by Send and not sent, each stream
  size_t max_streams = 64;                     // that the peer may have open at a time
  int64_t heartbeat_us = 1'000'000;            // a ping when nothing was sent for so long
  int64_t peer_timeout_us = 5'000'000;         // a peer that is silent for so long is gone
  int64_t handshake_timeout_us = 5'000'000;
};

struct EndpointOptions {
  Hello hello;
  HandshakePolicy policy;
  ConnectionLimits limits;
  // When one more comes, the oldest of those that came and have not said hello is closed, or that
  // one if there is none: whoever opens connections and says nothing keeps nobody out.
  size_t max_connections = 256;
  // All connections go through this link; null: as they are.
  std::shared_ptr<EmulatedLink> link;
  EmulatedLink::Direction link_direction = EmulatedLink::Direction::kBoth;
  // Without an own thread somebody calls Poll: tests with a manual clock.
  bool own_thread = true;
};

// Since the start, but for those that say "now".
struct EndpointStats {
  size_t connections = 0;  // now
  uint64_t accepted = 0;   // made by peers
  uint64_t greeted = 0;    // of all, those that got through the handshake
  // Accepted ones that did not: refused, silent, gone, or speaking something else.
  uint64_t failed_handshakes = 0;
  uint64_t over_limit = 0;  // closed because there were too many
  uint64_t broken = 0;      // ended by a peer that broke the protocol after its hello
};

class Endpoint {
 public:
  // `handler` may be null: streams of peers are refused. It and `clock` must outlive the endpoint.
  static Result<std::unique_ptr<Endpoint>> Create(EndpointOptions options, const Clock& clock,
                                                  StreamHandler* handler);
  virtual ~Endpoint() = default;  // as Close

  // Accepts connections on `address`; port 0 takes a free one. The address with the port.
  virtual Result<std::string> Listen(const std::string& address) = 0;

  // Called once, by the endpoint's thread: the connection after its handshake, or why there is
  // none: kUnavailable (nobody answers), kTimeout, kUnsupported (refused; the message has the
  // reason), kInvalidInput (not an address).
  using Connected = std::function<void(Result<std::shared_ptr<Connection>>)>;
  virtual void ConnectAsync(const std::string& address, int64_t deadline_us, Connected done) = 0;
  // Waits. Not for the endpoint's thread, nor without one.
  virtual Result<std::shared_ptr<Connection>> Connect(const std::string& address,
                                                      int64_t deadline_us) = 0;

  // A connection over any channel, as the side that connects or the one that accepts.
  virtual void Adopt(std::unique_ptr<ByteChannel> channel, bool connecting, int64_t deadline_us,
                     Connected done) = 0;

  // What this process tells peers from now on; open connections keep what they were told.
  // kInvalidInput: something is above its limit.
  virtual Result<void> SetHello(Hello hello) = 0;

  // Calls `function` on the endpoint's thread once, at `time_us` or soon after; what is not due
  // when the endpoint is closed is dropped. False: it is closed already.
  virtual bool RunAt(int64_t time_us, std::function<void()> function) = 0;

  // Without an own thread: does what can be done now; whether anything was. Then nothing happens
  // before NextEventMicros, unless from outside.
  virtual bool Poll() = 0;
  [[nodiscard]] virtual int64_t NextEventMicros() = 0;

  [[nodiscard]] virtual const Clock& clock() const = 0;
  // Thread-safe.
  [[nodiscard]] virtual EndpointStats stats() const = 0;
  // Buffers of received messages that are not dropped yet, of all connections that ever were.
  [[nodiscard]] virtual size_t live_buffers() const = 0;

  // Ends all connections (kUnavailable) and the thread; all sinks have heard OnEnd afterwards.
  // Not for the endpoint's thread. Idempotent.
  virtual void Close() = 0;
};

}  // namespace kvik::transfer
