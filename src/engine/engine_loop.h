// SPDX-License-Identifier: Apache-2.0
// engine/engine_loop.h: the thread that owns an Engine, and the queue into it.
//
// Submit and Abort put a command into a queue; the engine thread takes all waiting commands
// between two steps; when there is no work it lets the executor prepare for later steps, then
// sleeps on the queue, through which a connector wakes it, too. Outputs go to each request's sink
// on the engine thread. All public methods are thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "engine/request.h"

namespace kvik::engine {

struct EngineLoopOptions {
  // Where KV comes from and goes to (Engine::Connect); null: nowhere. Outlives the loop, whose
  // thread calls it, and disconnects when it ends. REQUIRES: the engine has a prefix cache.
  kv::Connector* connector = nullptr;
  int64_t max_requests = 4096;  // queued, waiting and running; Submit answers kUnavailable beyond
  // Called on the engine thread after every step; must not block. May be empty.
  std::function<void(const StepReport&)> on_step;
  // Called on the engine thread with what came to be cached and what went
  // (kv::CacheOptions::announce), never with nothing; must not block. May be empty.
  std::function<void(std::vector<kv::BlockEvent>)> on_block_events;
  // Called on the engine thread when no request can come any more, before Join returns. May be
  // empty.
  std::function<void(Engine&)> on_stop;
};

class EngineLoop {
 public:
  // Takes the engine and starts the thread.
  EngineLoop(std::unique_ptr<Engine> engine, EngineLoopOptions options);
  // Stops (as Stop) and joins.
  ~EngineLoop();
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  // Checks the request on the calling thread (Engine::Validate) and queues it. kInvalidInput: the
  // request; kUnavailable: draining, or max_requests are in flight. After success the sink gets
  // exactly one output with `finish`, whatever happens.
  Result<RequestId> Submit(Request request, OutputSink sink);
  // The request ends with kCancelled unless it ends by itself first. Unknown ids are ignored.
  void Abort(RequestId id);

  // Runs `fn` on the engine thread between two steps and returns when it has run; false when the
  // loop has stopped. Must not be called on the engine thread.
  bool RunOnEngineThread(const std::function<void(Engine&)>& fn);

  // Stops accepting requests; running and waiting ones finish. Returns at once.
  void Drain();
  // Stops accepting requests, cancels the others, joins the thread. Idempotent.
  void Stop();
  // Blocks until Drain (or Stop) has emptied the engine.
  void Join();

  // As of the last step.
  [[nodiscard]] EngineStats stats() const;
  [[nodiscard]] int32_t max_request_tokens() const;
  [[nodiscard]] bool draining() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvik::engine
