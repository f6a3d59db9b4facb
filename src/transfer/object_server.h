// SPDX-License-Identifier: Apache-2.0
// transfer/object_server.h: the other side of object_client.h: what a node with objects implements,
// be it a pool with a store or a prefill node with a live cache.
//
// Handlers are called by the endpoint's thread and must not wait: they hand work to their own
// threads and keep the reply. Replies are thread-safe and may be used at any time and from any
// thread; once their stream is over they do nothing. Dropping a reply unanswered refuses the call
// (kInternal), so none can be forgotten.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "transfer/objects.h"
#include "transfer/stream.h"

namespace kvik::transfer {

class LookupReply {
 public:
  virtual ~LookupReply() = default;
  virtual void Found(std::span<const FoundObject> found) = 0;
  virtual void Fail(Error error) = 0;
};

// What a reply tells its producer. Called by the endpoint's thread, never after OnEnd.
class ReplyListener {
 public:
  virtual ~ReplyListener() = default;
  virtual void OnRoom() = 0;  // after Append returned kFull
  // The stream is over: sent to its end, cancelled by the reader, timed out, or the peer is gone.
  // Pins can be dropped.
  virtual void OnEnd(const Result<void>& outcome) = 0;
};

// Objects of a Get, while they are being made. For each index: Begin, Append..., End; or Fail.
class GetReply {
 public:
  virtual ~GetReply() = default;
  // Once. If the stream is over already, the listener hears OnEnd at once, on the caller's thread.
  virtual void SetListener(std::shared_ptr<ReplyListener> listener) = 0;
  virtual void Begin(size_t index, const kv::ObjectInfo& info) = 0;
  // Bytes in order, of any size; shared until they are sent. kFull: not taken, the reader or the
  // wire is slower than this producer.
  virtual SendResult Append(size_t index, SharedBytes bytes) = 0;
  virtual void End(size_t index, const ObjectTimes& times) = 0;
  virtual void Fail(size_t index, Error error) = 0;
  // Every index has ended or failed.
  virtual void Finish() = 0;
  // Fails the call as a whole.
  virtual void Cancel(Error error) = 0;
  [[nodiscard]] virtual bool ended() const = 0;
};

// Where a handler puts the bytes of a Put. Called by the endpoint's thread.
class PutReceiver {
 public:
  virtual ~PutReceiver() = default;
  // Keeping `bytes` holds the sender back.
  virtual void OnBytes(SharedBytes bytes) = 0;
  // The sender has committed `size_bytes` in all, and they were all given to OnBytes. Publish, then
  // PutReply::Done.
  virtual void OnCommit(uint64_t size_bytes) = 0;
  // Over. Not preceded by OnCommit, or Done was not called yet: drop what came.
  virtual void OnEnd(const Result<void>& outcome) = 0;
};

class PutReply {
 public:
  virtual ~PutReply() = default;
  // kGo needs a receiver; after kHave the call is over.
  virtual void Answer(PutAnswer answer, std::shared_ptr<PutReceiver> receiver) = 0;
  // After OnCommit: it is stored.
  virtual void Done() = 0;
  virtual void Fail(Error error) = 0;
};

class RemoveReply {
 public:
  virtual ~RemoveReply() = default;
  virtual void Removed(size_t count) = 0;
  virtual void Fail(Error error) = 0;
};

class CallReply {
 public:
  virtual ~CallReply() = default;
  virtual void Answer(SharedBytes answer) = 0;
  virtual void Fail(Error error) = 0;
};

// What every request comes with.
struct CallContext {
  std::shared_ptr<Connection> connection;  // the way to ask the peer back
  int64_t deadline_us = kNever;            // by the endpoint's clock
  [[nodiscard]] const Peer& peer() const { return connection->peer(); }
};

class ObjectHandler {
 public:
  virtual ~ObjectHandler() = default;
  virtual void Lookup(const CallContext& context, LookupRequest request,
                      std::shared_ptr<LookupReply> reply) = 0;
  virtual void Get(const CallContext& context, GetRequest request,
                   std::shared_ptr<GetReply> reply) = 0;
  virtual void Put(const CallContext& context, PutRequest request,
                   std::shared_ptr<PutReply> reply) = 0;
  virtual void Remove(const CallContext& context, RemoveRequest request,
                      std::shared_ptr<RemoveReply> reply) = 0;
  virtual void Call(const CallContext& context, uint16_t number, SharedBytes request,
                    std::shared_ptr<CallReply> reply) = 0;
  virtual void OnPeerConnected(const Peer& peer) = 0;
  // Whatever the peer had leased is free again.
  virtual void OnPeerGone(const Peer& peer, const Error& error) = 0;
};

// Speaks the object protocol for `handler`, which must outlive it. Give it to Endpoint::Create.
[[nodiscard]] std::unique_ptr<StreamHandler> MakeObjectServer(ObjectHandler& handler);

}  // namespace kvik::transfer
