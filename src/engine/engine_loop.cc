// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_loop.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <limits>
#include <optional>
#include <thread>
#include <utility>
#include <variant>

#include "base/bounded_queue.h"
#include "base/check.h"
#include "base/mutex.h"

namespace kvik::engine {
namespace {

struct SubmitCommand {
  RequestId id;
  Request request;
  OutputSink sink;
};
struct AbortCommand {
  RequestId id;
};
struct CallCommand {
  const std::function<void(Engine&)>* fn;  // the caller waits, so it lives
  std::promise<bool> done;
};
struct WakeCommand {};  // a flag changed, or the connector has events
using Command = std::variant<SubmitCommand, AbortCommand, CallCommand, WakeCommand>;

}  // namespace

struct EngineLoop::Impl {
  Impl(std::unique_ptr<Engine> e, EngineLoopOptions o)
      : engine(std::move(e)), options(std::move(o)) {}

  // The engine thread.
  void Run() {
    // Set: nothing can run until a command changes something, or so much time has passed.
    std::optional<int64_t> stalled_us;
    while (true) {
      if (stalled_us || (!engine->HasWork() && !draining)) {
        if (auto command = stalled_us ? PopStalled(*stalled_us) : PopIdle()) {
          Handle(*command);
        }
      }
      for (Command& command : commands.TakeAll()) {
        Handle(command);
      }
      if (stopping) {
        engine->AbortAll();
      }
      woken = false;  // before events are taken: those that come later wake again
      stalled_us.reset();
      if (engine->HasWork()) {
        const StepReport report = engine->Step();
        if (!report.idle_reason.empty() && engine->HasWork()) {
          stalled_us = report.idle_us;
        }
        PublishStats();
        if (options.on_step) {
          options.on_step(report);
        }
      } else if (draining) {
        break;
      } else if (options.connector != nullptr) {
        engine->TakeEvents();
        PublishStats();
      }
      TellBlockEvents();
    }
    engine->Disconnect();
    commands.Close();
    for (Command& command : commands.TakeAll()) {  // came too late
      Refuse(command);
    }
    if (options.on_stop) {
      options.on_stop(*engine);
    }
    PublishStats();
  }

  void TellBlockEvents() {
    if (!options.on_block_events) {
      return;
    }
    if (std::vector<kv::BlockEvent> events = engine->TakeBlockEvents(); !events.empty()) {
      options.on_block_events(std::move(events));
    }
  }

  std::optional<Command> PopStalled(int64_t limit_us) {
    constexpr int64_t kLongest = 3'600'000'000;
    return limit_us == kv::kUntilEvent
               ? commands.Pop()
               : commands.PopFor(std::chrono::microseconds(std::min(limit_us, kLongest)));
  }

  // Any thread.
  void Wake() {
    if (!woken.exchange(true)) {
      Command wake = WakeCommand{};
      (void)commands.TryPush(wake);  // refused only when the loop has ended
    }
  }

  // Pop, and preparations for later steps while nothing comes. A client that talks in turns is back
  // within moments and should not have to wait for one.
  std::optional<Command> PopIdle() {
    constexpr std::chrono::milliseconds kQuiet{50};
    std::optional<Command> command = commands.PopFor(kQuiet);
    while (!command && engine->DoIdleWork()) {
      command = commands.TryPop();
    }
    return command ? std::move(command) : commands.Pop();
  }

  void Handle(Command& command) {
    if (auto* submit = std::get_if<SubmitCommand>(&command)) {
      const OutputSink sink = submit->sink;
      const auto accepted =
          engine->Submit(submit->id, std::move(submit->request), std::move(submit->sink));
      if (!accepted.has_value()) {
        End(submit->id, sink, FinishReason::kError, accepted.error());
      }
    } else if (auto* abort = std::get_if<AbortCommand>(&command)) {
      engine->Abort(abort->id);
      PublishStats();  // maybe no step follows
    } else if (auto* call = std::get_if<CallCommand>(&command)) {
      (*call->fn)(*engine);
      PublishStats();
      call->done.set_value(true);
    }
  }

  static void Refuse(Command& command) {
    if (auto* submit = std::get_if<SubmitCommand>(&command)) {
      End(submit->id, submit->sink, FinishReason::kCancelled, std::nullopt);
    } else if (auto* call = std::get_if<CallCommand>(&command)) {
      call->done.set_value(false);
    }
  }

  static void End(RequestId id, const OutputSink& sink, FinishReason reason,
                  std::optional<Error> error) {
    RequestOutput output;
    output.id = id;
    output.finish = reason;
    output.error = std::move(error);
    sink(std::move(output));
  }

  void PublishStats() KVIK_EXCLUDES(stats_mutex) {
    EngineStats now = engine->stats();
    now.rejected += rejected;
    MutexLock lock(stats_mutex);
    stats = now;
  }

  std::unique_ptr<Engine> engine;
  EngineLoopOptions options;
  // Unbounded: max_requests bounds what is submitted, and aborts are never refused.
  BoundedQueue<Command> commands{std::numeric_limits<size_t>::max()};
  std::atomic<bool> draining{false};
  std::atomic<bool> stopping{false};
  std::atomic<bool> woken{false};  // a wake of the connector is in the queue
  std::atomic<int64_t> rejected{0};
  std::atomic<int64_t> in_flight{0};
  Mutex stats_mutex;
  EngineStats stats KVIK_GUARDED_BY(stats_mutex);
  Mutex join_mutex;
  std::thread thread KVIK_GUARDED_BY(join_mutex);
};

EngineLoop::EngineLoop(std::unique_ptr<Engine> engine, EngineLoopOptions options)
    : impl_(std::make_unique<Impl>(std::move(engine), std::move(options))) {
  impl_->PublishStats();
  if (kv::Connector* connector = impl_->options.connector; connector != nullptr) {
    const auto connected =
        impl_->engine->Connect(*connector, [impl = impl_.get()] { impl->Wake(); });
    KVIK_CHECK(connected.has_value(), "%s", connected.error().message.c_str());
  }
  MutexLock lock(impl_->join_mutex);
  impl_->thread = std::thread([impl = impl_.get()] { impl->Run(); });
}

EngineLoop::~EngineLoop() { Stop(); }

Result<RequestId> EngineLoop::Submit(Request request, OutputSink sink) {
  if (auto valid = impl_->engine->Validate(request); !valid.has_value()) {
    ++impl_->rejected;
    return valid.error();
  }
  if (impl_->draining) {
    return Err(ErrorCode::kUnavailable, "the server is shutting down");
  }
  if (++impl_->in_flight > impl_->options.max_requests) {
    --impl_->in_flight;
    return Err(ErrorCode::kUnavailable, "%lld requests are in flight already: try again later",
               static_cast<long long>(impl_->options.max_requests));
  }
  const RequestId id = impl_->engine->ReserveId();
  OutputSink counted = [impl = impl_.get(), sink = std::move(sink)](RequestOutput output) {
    if (output.finish) {
      --impl->in_flight;
    }
    sink(std::move(output));
  };
  Command command = SubmitCommand{id, std::move(request), std::move(counted)};
  if (!impl_->commands.TryPush(command)) {
    --impl_->in_flight;
    return Err(ErrorCode::kUnavailable, "the server is shutting down");
  }
  return id;
}

void EngineLoop::Abort(RequestId id) {
  Command command = AbortCommand{id};
  (void)impl_->commands.TryPush(command);  // refused only when every request has ended
}

bool EngineLoop::RunOnEngineThread(const std::function<void(Engine&)>& fn) {
  CallCommand call{&fn, {}};
  std::future<bool> done = call.done.get_future();
  Command command = std::move(call);
  return impl_->commands.TryPush(command) && done.get();
}

void EngineLoop::Drain() {
  impl_->draining = true;
  Command wake = WakeCommand{};
  (void)impl_->commands.TryPush(wake);
}

void EngineLoop::Stop() {
  impl_->stopping = true;
  Drain();
  Join();
}

void EngineLoop::Join() {
  MutexLock lock(impl_->join_mutex);
  if (impl_->thread.joinable()) {
    impl_->thread.join();
  }
}

EngineStats EngineLoop::stats() const {
  MutexLock lock(impl_->stats_mutex);
  return impl_->stats;
}

int32_t EngineLoop::max_request_tokens() const { return impl_->engine->max_request_tokens(); }

bool EngineLoop::draining() const { return impl_->draining; }

}  // namespace kvik::engine
