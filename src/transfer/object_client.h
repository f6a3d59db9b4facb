// SPDX-License-Identifier: Apache-2.0
// transfer/object_client.h: the objects of one peer: look up, get, put, remove, follow.
//
// Keeps one connection to the peer and makes a new one when it is asked for something and has none:
// a peer may come back. Calls wait for an attempt that is under way, until their deadlines; after a
// failed one there is a pause, which grows, and calls fail at once with kUnavailable. Thread-safe.
// Callbacks and sinks are called by the endpoint's thread and must not wait; a callback is called
// exactly once, a sink's OnDone exactly once and last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "transfer/endpoint.h"
#include "transfer/objects.h"

namespace kvik::transfer {

// Ends a call early; its sink or callback hears kUnavailable "cancelled", unless it is over
// already. Dropping the handle does not cancel. Thread-safe.
class CallHandle {
 public:
  virtual ~CallHandle() = default;
  virtual void Cancel() = 0;
};

// Receives the objects of a Get. For each object that comes: OnObject, its bytes in order,
// OnObjectEnd; objects may interleave. For one that does not: OnObjectEnd alone. Keeping `bytes`
// keeps the peer from sending more than a window of them.
class GetSink {
 public:
  virtual ~GetSink() = default;
  virtual void OnObject(size_t index, const kv::ObjectInfo& info) = 0;
  virtual void OnBytes(size_t index, SharedBytes bytes) = 0;
  // Before a successful OnObjectEnd, if the peer made the object for this call.
  virtual void OnObjectTimes(size_t /*index*/, const ObjectTimes& /*times*/) {}
  // Success: all bytes were there. kNotFound: the peer has it no more. Every index gets one, also
  // when the whole call fails.
  virtual void OnObjectEnd(size_t index, const Result<void>& outcome) = 0;
  virtual void OnDone(const Result<void>& outcome, const StreamStats& stats) = 0;
};

class PutHandle : public CallHandle {
 public:
  // REQUIRES: after OnAnswer(kGo). The bytes are shared, not copied.
  virtual SendResult Append(SharedBytes bytes) = 0;
  // All bytes were appended; the peer publishes the object once they are all there. Without it the
  // peer drops them.
  virtual void Commit() = 0;
};

// The sender's side of a Put.
class PutSink {
 public:
  virtual ~PutSink() = default;
  // kGo: append the bytes and commit. kHave: nothing is to be done, OnDone follows.
  virtual void OnAnswer(PutAnswer answer, const std::shared_ptr<PutHandle>& put) = 0;
  virtual void OnWritable() = 0;  // after Append returned kFull
  // Success: the peer has it, readable for everybody.
  virtual void OnDone(const Result<void>& outcome, const StreamStats& stats) = 0;
};

struct PeerStats {
  ConnectionStats connection;  // bytes and wire time summed over all connections to the peer
  bool connected = false;
  uint64_t connects = 0;
  uint64_t failed_connects = 0;
};

class ObjectClient {
 public:
  struct Options {
    std::string address;
    // Instead of connecting to the address: over a loopback, or a connection that the peer made.
    std::function<void(int64_t deadline_us, Endpoint::Connected done)> dial;
    int64_t connect_timeout_us = 3'000'000;
    int64_t first_pause_us = 50'000;  // between attempts; doubles
    int64_t longest_pause_us = 5'000'000;
  };
  // `endpoint` must outlive the client; closing it ends every call.
  static std::unique_ptr<ObjectClient> Create(Endpoint& endpoint, Options options);
  virtual ~ObjectClient() = default;  // ends its connection

  // Begins to connect if there is no connection and the pause is over.
  virtual void Warm() = 0;
  // The peer's hello of the present connection.
  [[nodiscard]] virtual std::optional<Hello> peer() const = 0;
  [[nodiscard]] virtual PeerStats stats() const = 0;

  using Found = std::function<void(Result<std::vector<FoundObject>>)>;
  virtual std::shared_ptr<CallHandle> Lookup(const LookupRequest& request, int64_t deadline_us,
                                             Found done) = 0;
  // `priority` as in OpenOptions.
  virtual std::shared_ptr<CallHandle> Get(const GetRequest& request, int64_t deadline_us,
                                          std::shared_ptr<GetSink> sink,
                                          uint8_t priority = 128) = 0;
  virtual std::shared_ptr<PutHandle> Put(const PutRequest& request, int64_t deadline_us,
                                         std::shared_ptr<PutSink> sink, uint8_t priority = 192) = 0;
  using Removed = std::function<void(Result<size_t>)>;  // how many were there
  virtual std::shared_ptr<CallHandle> Remove(const RemoveRequest& request, int64_t deadline_us,
                                             Removed done) = 0;
  // `number`: the application's call, from 0; answered by ObjectHandler::Call.
  using Answered = std::function<void(Result<SharedBytes>)>;
  virtual std::shared_ptr<CallHandle> Call(uint16_t number, SharedBytes request,
                                           int64_t deadline_us, Answered done) = 0;

  // The same for threads that may wait; not for the endpoint's.
  Result<std::vector<FoundObject>> LookupWait(const LookupRequest& request, int64_t deadline_us);
  Result<Payload> GetWait(const kv::ObjectKey& key, int64_t deadline_us);
  Result<void> PutWait(const PutRequest& request, SharedBytes bytes, int64_t deadline_us);
  Result<size_t> RemoveWait(const RemoveRequest& request, int64_t deadline_us);
  Result<SharedBytes> CallWait(uint16_t number, SharedBytes request, int64_t deadline_us);
};

}  // namespace kvik::transfer
