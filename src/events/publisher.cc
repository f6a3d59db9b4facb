// SPDX-License-Identifier: Apache-2.0
//
// Callers put batches into a bounded queue. One thread owns the sockets and the history: it takes
// all that waits, numbers, encodes, keeps and sends it, and answers those who ask for more. Nothing
// that it does waits for a subscriber, so the queue is empty but for moments. When it is full
// nevertheless, events are lost for good: the next batch that fits says so, and all begin anew.
#include "events/publisher.h"

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <zmq.hpp>
#include <zmq_addon.hpp>

#include "base/bounded_queue.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/wake_fd.h"
#include "events/history.h"
#include "events/zmq_parts.h"

namespace kvik::events {
namespace {

constexpr int kLingerMs = 200;
// Between two looks at the queue.
constexpr int kRepliesAtOnce = 16;

struct Batch {
  std::vector<kv::BlockEvent> events;
  bool after_loss = false;
};

bool IsBound(const std::string& endpoint) {
  return endpoint.find('*') != std::string::npos || endpoint.find("::") != std::string::npos ||
         endpoint.starts_with("ipc://");
}

zmq::message_t SequenceFrame(uint64_t sequence) {
  std::array<uint8_t, 8> bytes{};
  PutBigEndian(sequence, bytes);
  return {bytes.data(), bytes.size()};
}

// Shares the bytes.
zmq::message_t PayloadFrame(const std::shared_ptr<const std::string>& payload) {
  auto* const hint = new std::shared_ptr<const std::string>(payload);
  return {const_cast<char*>(payload->data()), payload->size(),
          [](void* /*data*/, void* shared) {
            delete static_cast<std::shared_ptr<const std::string>*>(shared);
          },
          hint};
}

}  // namespace

struct Publisher::Impl {
  explicit Impl(PublisherOptions the_options)
      : options(std::move(the_options)),
        queue(static_cast<size_t>(options.config.max_queue_size)),
        history({.max_batches = static_cast<size_t>(options.config.buffer_steps),
                 .int_block_hashes = options.config.use_int_block_hashes}) {}

  Result<void> Open() {
    const PublisherConfig& config = options.config;
    try {
      pub = zmq::socket_t(context, zmq::socket_type::pub);
      pub.set(zmq::sockopt::sndhwm, static_cast<int>(config.hwm));
      pub.set(zmq::sockopt::linger, kLingerMs);
      pub.set(zmq::sockopt::ipv6, IsIpv6(config.endpoint));
      if (IsBound(config.endpoint)) {
        pub.bind(config.endpoint);
        endpoint = pub.get(zmq::sockopt::last_endpoint);
      } else {
        pub.connect(config.endpoint);
      }
    } catch (const zmq::error_t& e) {
      return Err(ErrorCode::kUnavailable, "cannot publish KV events at %s: %s",
                 config.endpoint.c_str(), e.what());
    }
    if (!config.replay_endpoint) {
      return {};
    }
    try {
      router = zmq::socket_t(context, zmq::socket_type::router);
      // A peer that has left or does not read is an error, and does not make the thread wait.
      router->set(zmq::sockopt::router_mandatory, true);
      router->set(zmq::sockopt::sndhwm, static_cast<int>(config.buffer_steps) + 16);
      router->set(zmq::sockopt::linger, kLingerMs);
      router->set(zmq::sockopt::maxmsgsize, int64_t{4096});
      router->set(zmq::sockopt::ipv6, IsIpv6(*config.replay_endpoint));
      router->bind(*config.replay_endpoint);
      replay_endpoint = router->get(zmq::sockopt::last_endpoint);
    } catch (const zmq::error_t& e) {
      return Err(ErrorCode::kUnavailable, "cannot replay KV events at %s: %s",
                 config.replay_endpoint->c_str(), e.what());
    }
    return {};
  }

  // The thread.
  void Run() {
    while (!stopping) {
      try {
        std::vector<zmq::pollitem_t> items = {{nullptr, wake.fd(), ZMQ_POLLIN, 0}};
        if (router) {
          items.push_back({router->handle(), 0, ZMQ_POLLIN, 0});
        }
        zmq::poll(items, std::chrono::milliseconds(-1));
        wake.Drain();
        PublishAll();
        for (int i = 0; router && i < kRepliesAtOnce && AnswerOne(); ++i) {
        }
      } catch (const std::exception& e) {  // a signal at best; what was asked is asked again
        LogWarning("KV events: %s", e.what());
      }
    }
    try {
      PublishAll();
    } catch (const std::exception& e) {
      LogWarning("KV events: %s", e.what());
    }
  }

  void PublishAll() {
    for (Batch& batch : queue.TakeAll()) {
      const double now = options.unix_seconds();
      const int32_t block_size = options.block_size_tokens();
      const std::optional<EventHistory::Message> message =
          batch.after_loss ? history.AppendAfterLoss(now, std::move(batch.events), block_size)
                           : history.Append(now, std::move(batch.events), block_size);
      held_blocks = static_cast<int64_t>(history.num_blocks());
      if (!message) {
        continue;
      }
      pub.send(zmq::message_t(options.config.topic), zmq::send_flags::sndmore);
      pub.send(SequenceFrame(message->sequence), zmq::send_flags::sndmore);
      pub.send(PayloadFrame(message->payload), zmq::send_flags::none);  // drops, never waits
      ++batches;
    }
  }

  // False: nobody asks.
  bool AnswerOne() {
    std::vector<zmq::message_t> frames;
    if (!zmq::recv_multipart(*router, std::back_inserter(frames), zmq::recv_flags::dontwait)) {
      return false;
    }
    // Who asks, an empty frame, and from where.
    if (frames.size() != 3 || frames[1].size() != 0 || frames[2].size() != 8) {
      return true;
    }
    const uint64_t from = GetBigEndian(std::span<const uint8_t, 8>(frames[2].data<uint8_t>(), 8));
    bool taken = true;
    for (const EventHistory::Message& message :
         history.From(from, options.unix_seconds(), options.block_size_tokens())) {
      taken = taken && Send(frames[0], message.sequence, PayloadFrame(message.payload));
    }
    if (taken && Send(frames[0], kEndOfReplay, {})) {
      ++replays;
    }
    return true;
  }

  // False: the peer has left, or has not read what it asked for before.
  bool Send(const zmq::message_t& peer, uint64_t sequence, zmq::message_t payload) {
    const auto more = zmq::send_flags::sndmore | zmq::send_flags::dontwait;
    zmq::message_t to(peer.data(), peer.size());
    try {
      if (!router->send(to, more)) {
        return false;
      }
    } catch (const zmq::error_t& e) {
      if (e.num() == EHOSTUNREACH) {
        return false;
      }
      throw;
    }
    router->send(zmq::message_t(), more);
    router->send(SequenceFrame(sequence), more);
    router->send(std::move(payload), zmq::send_flags::dontwait);
    return true;
  }

  const PublisherOptions options;
  zmq::context_t context{1};
  // The thread's, once it runs.
  zmq::socket_t pub;
  std::optional<zmq::socket_t> router;

  std::optional<std::string> endpoint;
  std::optional<std::string> replay_endpoint;
  WakeFd wake;
  BoundedQueue<Batch> queue;
  EventHistory history;  // the thread's
  Mutex push_mutex;
  bool lost KVIK_GUARDED_BY(push_mutex) = false;
  std::atomic<bool> stopping{false};
  std::atomic<int64_t> batches{0};
  std::atomic<int64_t> lost_batches{0};
  std::atomic<int64_t> replays{0};
  std::atomic<int64_t> held_blocks{0};
  std::thread thread;
};

Result<std::unique_ptr<Publisher>> Publisher::Create(PublisherOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  if (!impl->wake.valid()) {
    return Err(ErrorCode::kExhausted, "no file descriptor is left to publish events with");
  }
  KVIK_TRY(impl->Open());
  impl->thread = std::thread([p = impl.get()] { p->Run(); });
  return std::unique_ptr<Publisher>(new Publisher(std::move(impl)));
}

Publisher::Publisher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Publisher::~Publisher() {
  impl_->stopping = true;
  impl_->wake.Wake();
  impl_->thread.join();
}

void Publisher::Publish(std::vector<kv::BlockEvent> events) {
  if (events.empty()) {
    return;
  }
  {
    MutexLock lock(impl_->push_mutex);
    Batch batch{std::move(events), impl_->lost};
    impl_->lost = !impl_->queue.TryPush(batch);
    if (impl_->lost) {
      ++impl_->lost_batches;
    }
  }
  impl_->wake.Wake();
}

const std::optional<std::string>& Publisher::endpoint() const { return impl_->endpoint; }

const std::optional<std::string>& Publisher::replay_endpoint() const {
  return impl_->replay_endpoint;
}

PublisherStats Publisher::stats() const {
  return PublisherStats{impl_->batches, impl_->lost_batches, impl_->replays, impl_->held_blocks};
}

}  // namespace kvik::events
