// SPDX-License-Identifier: Apache-2.0
#include "events/follower.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <thread>
#include <utility>
#include <vector>
#include <zmq.hpp>
#include <zmq_addon.hpp>

#include "base/check.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/wake_fd.h"
#include "events/publisher.h"
#include "events/zmq_parts.h"

namespace kvik::events {
namespace {

constexpr int64_t kMaxMessageBytes = int64_t{256} << 20;
constexpr int kMessagesAtOnce = 256;
constexpr int kReceiveBatches = 100'000;

}  // namespace

struct Follower::Impl {
  Impl(EventListener& the_listener, const Clock& the_clock, const FollowOptions& the_options)
      : listener(the_listener), clock(the_clock), options(the_options) {}

  // A publisher that is followed.
  struct Link {
    Link(zmq::context_t& context, EventSource the_source, FollowOptions follow)
        : source(std::move(the_source)), state(follow), sub(context, zmq::socket_type::sub) {
      sub.set(zmq::sockopt::linger, 0);
      sub.set(zmq::sockopt::rcvhwm, kReceiveBatches);
      sub.set(zmq::sockopt::maxmsgsize, kMaxMessageBytes);
      sub.set(zmq::sockopt::subscribe, source.topic);
      sub.set(zmq::sockopt::ipv6, IsIpv6(source.endpoint));
      sub.connect(source.endpoint);
    }

    const EventSource source;
    FollowState state;
    zmq::socket_t sub;
    std::optional<zmq::socket_t> replay;  // open while one is under way, and after
    FollowStats stats;
  };

  void Run() {
    while (!stopping) {
      try {
        Adjust();
        const int64_t now = clock.NowMicros();
        int64_t due = std::numeric_limits<int64_t>::max();
        for (auto& [id, link] : links) {
          AskIfDue(*link, now);
          due = std::min(due, link->state.due_us());
        }
        Tell();
        Poll(due == std::numeric_limits<int64_t>::max() ? -1 : (due - now + 999) / 1000);
      } catch (const std::exception& e) {
        LogWarning("KV events: %s", e.what());
      }
    }
  }

  // Takes over what Follow said.
  void Adjust() {
    std::map<uint64_t, EventSource> now;
    {
      MutexLock lock(mutex);
      if (!changed) {
        return;
      }
      changed = false;
      now = wanted;
    }
    std::erase_if(links, [&](const auto& entry) {
      const auto it = now.find(entry.first);
      const bool gone = it == now.end() || !(it->second == entry.second->source);
      if (gone) {
        listener.OnForget(entry.first);
      }
      return gone;
    });
    for (auto& [id, source] : now) {
      if (links.contains(id)) {
        continue;
      }
      FollowOptions follow = options;
      follow.can_replay = source.replay_endpoint.has_value();
      try {
        links.emplace(id, std::make_unique<Link>(context, source, follow));
      } catch (const zmq::error_t& e) {
        LogWarning("cannot follow KV events at %s: %s", source.endpoint.c_str(), e.what());
      }
    }
  }

  void AskIfDue(Link& link, int64_t now) {
    if (link.state.GiveUp(now)) {
      link.replay.reset();  // and with it whatever is still under way
    }
    const std::optional<uint64_t> from = link.state.Ask(now);
    if (!from) {
      return;
    }
    if (!link.replay) {
      link.replay.emplace(context, zmq::socket_type::dealer);
      link.replay->set(zmq::sockopt::linger, 0);
      link.replay->set(zmq::sockopt::rcvhwm, 0);  // bounded by what the publisher keeps
      link.replay->set(zmq::sockopt::maxmsgsize, kMaxMessageBytes);
      link.replay->set(zmq::sockopt::ipv6, IsIpv6(*link.source.replay_endpoint));
      link.replay->connect(*link.source.replay_endpoint);
    }
    std::array<uint8_t, 8> bytes{};
    PutBigEndian(*from, bytes);
    link.replay->send(zmq::message_t(), zmq::send_flags::sndmore | zmq::send_flags::dontwait);
    link.replay->send(zmq::message_t(bytes.data(), bytes.size()), zmq::send_flags::dontwait);
  }

  void Poll(int64_t timeout_ms) {
    std::vector<zmq::pollitem_t> items = {{nullptr, wake.fd(), ZMQ_POLLIN, 0}};
    for (auto& [id, link] : links) {
      items.push_back({link->sub.handle(), 0, ZMQ_POLLIN, 0});
      if (link->replay) {
        items.push_back({link->replay->handle(), 0, ZMQ_POLLIN, 0});
      }
    }
    zmq::poll(items, std::chrono::milliseconds(timeout_ms < 0 ? -1 : timeout_ms));
    wake.Drain();
    for (auto& [id, link] : links) {
      // Replays first: what they bring comes before what is live.
      for (int i = 0; i < kMessagesAtOnce && link->replay && TakeReplay(id, *link); ++i) {
      }
      for (int i = 0; i < kMessagesAtOnce && TakeLive(id, *link); ++i) {
      }
    }
  }

  using Frames = std::vector<zmq::message_t>;
  static bool Receive(zmq::socket_t& socket, Frames& frames) {
    return zmq::recv_multipart(socket, std::back_inserter(frames), zmq::recv_flags::dontwait)
        .has_value();
  }
  static uint64_t SequenceOf(const zmq::message_t& frame) {
    return GetBigEndian(std::span<const uint8_t, 8>(frame.data<uint8_t>(), 8));
  }

  // False: nothing is there. Frames: topic, sequence, batch.
  bool TakeLive(uint64_t id, Link& link) {
    Frames frames;
    if (!Receive(link.sub, frames)) {
      return false;
    }
    // Topics that only begin like this one are others.
    if (frames.size() == 3 && frames[0].to_string_view() == link.source.topic &&
        frames[1].size() == 8) {
      Apply(id, link, link.state.Live(SequenceOf(frames[1])), frames[2]);
    }
    return true;
  }
  // Frames: nothing, sequence, batch.
  bool TakeReplay(uint64_t id, Link& link) {
    Frames frames;
    if (!Receive(*link.replay, frames)) {
      return false;
    }
    if (frames.size() != 3 || frames[1].size() != 8) {
      return true;
    }
    const uint64_t sequence = SequenceOf(frames[1]);
    if (sequence == kEndOfReplay) {
      link.state.ReplayEnded(clock.NowMicros());
      return true;
    }
    const Result<ReceivedBatch> batch = Decode(frames[2]);
    const bool starts_over = batch && !batch->events.empty() &&
                             batch->events.front().kind == kv::BlockEventKind::kCleared;
    Apply(id, link, link.state.Replayed(sequence, starts_over), batch);
    return true;
  }

  static Result<ReceivedBatch> Decode(const zmq::message_t& frame) {
    return DecodeBatch({static_cast<const std::byte*>(frame.data()), frame.size()});
  }
  void Apply(uint64_t id, Link& link, const FollowState::Verdict& verdict,
             const zmq::message_t& frame) {
    if (verdict.take) {
      Apply(id, link, verdict, Decode(frame));
    }
  }
  void Apply(uint64_t id, Link& link, const FollowState::Verdict& verdict,
             const Result<ReceivedBatch>& batch) {
    if (!verdict.take) {
      return;
    }
    if (verdict.forget || !batch) {
      listener.OnForget(id);
    }
    if (!batch) {
      LogWarning("KV events of %s: %s", link.source.endpoint.c_str(),
                 batch.error().message.c_str());
      return;
    }
    listener.OnEvents(id, batch->events);
    ++link.stats.batches;
    const bool cleared =
        !batch->events.empty() && batch->events.front().kind == kv::BlockEventKind::kCleared;
    link.stats.start_overs += verdict.forget || cleared ? 1 : 0;
  }

  // What stats() says.
  void Tell() {
    std::map<uint64_t, FollowStats> now;
    for (const auto& [id, link] : links) {
      FollowStats stats = link->stats;
      stats.gaps = link->state.gaps();
      stats.up_to_date = link->state.up_to_date();
      now.emplace(id, stats);
    }
    MutexLock lock(mutex);
    told = std::move(now);
  }

  EventListener& listener;
  const Clock& clock;
  const FollowOptions options;
  zmq::context_t context{1};
  WakeFd wake;
  std::atomic<bool> stopping{false};
  mutable Mutex mutex;
  std::map<uint64_t, EventSource> wanted KVIK_GUARDED_BY(mutex);
  bool changed KVIK_GUARDED_BY(mutex) = false;
  std::map<uint64_t, FollowStats> told KVIK_GUARDED_BY(mutex);
  std::map<uint64_t, std::unique_ptr<Link>> links;  // the thread's
  std::thread thread;
};

Follower::Follower(EventListener& listener, const Clock& clock, const FollowOptions& options)
    : impl_(std::make_unique<Impl>(listener, clock, options)) {
  KVIK_CHECK(impl_->wake.valid(), "no file descriptor is left");
  impl_->thread = std::thread([impl = impl_.get()] { impl->Run(); });
}

Follower::~Follower() {
  impl_->stopping = true;
  impl_->wake.Wake();
  impl_->thread.join();
}

void Follower::Follow(std::map<uint64_t, EventSource> sources) {
  {
    MutexLock lock(impl_->mutex);
    if (impl_->wanted == sources) {
      return;
    }
    impl_->wanted = std::move(sources);
    impl_->changed = true;
  }
  impl_->wake.Wake();
}

std::map<uint64_t, FollowStats> Follower::stats() const {
  MutexLock lock(impl_->mutex);
  return impl_->told;
}

}  // namespace kvik::events
