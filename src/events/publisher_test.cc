// SPDX-License-Identifier: Apache-2.0
//
// Over real sockets. What happens when is told by queues, not by time.
#include "events/publisher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>
#include <zmq.hpp>
#include <zmq_addon.hpp>

#include "base/clock.h"
#include "base/mutex.h"
#include "events/follower.h"
#include "events/zmq_parts.h"

namespace kvik::events {
namespace {

using kv::BlockEvent;
using kv::BlockEventKind;
using kv::BlockHash;
using testing::ElementsAre;
using testing::SizeIs;

constexpr int kPatienceMs = 60'000;

BlockHash Named(uint32_t name) {
  BlockHash hash;
  hash.bytes[15] = static_cast<uint8_t>(name);
  hash.bytes[14] = static_cast<uint8_t>(name >> 8);
  return hash;
}

std::vector<BlockEvent> Stored(uint32_t name) {
  BlockEvent event;
  event.blocks = {Named(name)};
  event.tokens = {static_cast<TokenId>(name)};
  return {event};
}
std::vector<BlockEvent> Removed(uint32_t name) {
  std::vector<BlockEvent> events = Stored(name);
  events[0].kind = BlockEventKind::kRemoved;
  return events;
}

std::unique_ptr<Publisher> Open(PublisherConfig config) {
  PublisherOptions options;
  options.config = std::move(config);
  options.unix_seconds = [] { return 1.5; };
  options.block_size_tokens = [] { return 1; };
  auto publisher = Publisher::Create(std::move(options));
  EXPECT_TRUE(publisher) << publisher.error().message;
  return *std::move(publisher);
}

PublisherConfig Loopback() {
  PublisherConfig config;
  config.endpoint = "tcp://127.0.0.1:*";
  config.replay_endpoint = "tcp://127.0.0.1:*";
  config.topic = "kv";
  return config;
}

EventSource SourceOf(const Publisher& publisher, const std::string& instance = "1") {
  return {publisher.endpoint().value(), publisher.replay_endpoint(), "kv", instance};
}

// Knows what each publisher holds; others can wait for that.
class Known final : public EventListener {
 public:
  void OnForget(uint64_t publisher) override {
    MutexLock lock(mutex_);
    held_.erase(publisher);
    changed_.NotifyAll();
  }
  void OnEvents(uint64_t publisher, std::span<const ReceivedEvent> events) override {
    MutexLock lock(mutex_);
    for (const ReceivedEvent& event : events) {
      if (event.kind == BlockEventKind::kCleared) {
        held_[publisher].clear();
      }
      for (const uint64_t block : event.blocks) {
        if (event.kind == BlockEventKind::kStored) {
          held_[publisher].insert(block);
        } else {
          held_[publisher].erase(block);
        }
      }
    }
    changed_.NotifyAll();
  }
  // Until it holds these; a test that waits in vain is ended by its time limit.
  void AwaitHeld(uint64_t publisher, const std::set<uint64_t>& blocks) {
    MutexLock lock(mutex_);
    while (held_[publisher] != blocks) {
      changed_.Wait(mutex_);
    }
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::map<uint64_t, std::set<uint64_t>> held_ KVIK_GUARDED_BY(mutex_);
};

// Asks for batches again.
class Asker {
 public:
  explicit Asker(const std::string& endpoint) : socket_(context_, zmq::socket_type::dealer) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::rcvtimeo, kPatienceMs);
    socket_.connect(endpoint);
  }
  void Ask(uint64_t from) {
    std::array<uint8_t, 8> bytes{};
    PutBigEndian(from, bytes);
    socket_.send(zmq::message_t(), zmq::send_flags::sndmore);
    socket_.send(zmq::message_t(bytes.data(), bytes.size()), zmq::send_flags::none);
  }
  std::vector<std::string> Receive() {
    std::vector<zmq::message_t> frames;
    EXPECT_TRUE(zmq::recv_multipart(socket_, std::back_inserter(frames)));
    std::vector<std::string> texts;
    for (const zmq::message_t& frame : frames) {
      texts.push_back(frame.to_string());
    }
    return texts;
  }

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
};

uint64_t Sequence(const std::string& frame) {
  std::array<uint8_t, 8> bytes{};
  EXPECT_EQ(frame.size(), 8U);
  std::copy(frame.begin(), frame.end(), bytes.begin());
  return GetBigEndian(bytes);
}

TEST(Publisher, SendsThreeFramesAndReplaysThem) {
  const auto publisher = Open(Loopback());
  Asker replay(*publisher->replay_endpoint());
  for (uint32_t i = 1; i <= 3; ++i) {
    publisher->Publish(Stored(i));
  }
  replay.Ask(1);
  std::vector<std::string> frames = replay.Receive();
  // The queue may not have been taken yet.
  while (Sequence(frames[1]) == kEndOfReplay) {
    replay.Ask(1);
    frames = replay.Receive();
  }
  ASSERT_THAT(frames, SizeIs(3));
  EXPECT_EQ(frames[0], "");
  EXPECT_EQ(Sequence(frames[1]), 1U);
  const auto batch = DecodeBatch(std::as_bytes(std::span(frames[2]))).value();
  EXPECT_EQ(batch.unix_seconds, 1.5);
  EXPECT_THAT(batch.events[0].blocks, ElementsAre(2));
  while (Sequence(frames[1]) != kEndOfReplay) {
    frames = replay.Receive();
  }
  EXPECT_THAT(frames, ElementsAre("", std::string(8, '\xff'), ""));
}

TEST(Publisher, ASubscriberThatConnectedInTimeSeesEverySequence) {
  // The publisher connects to a subscriber that listens.
  zmq::context_t context;
  zmq::socket_t sub(context, zmq::socket_type::sub);
  sub.set(zmq::sockopt::linger, 0);
  sub.set(zmq::sockopt::rcvtimeo, kPatienceMs);
  sub.set(zmq::sockopt::subscribe, "topic");
  sub.bind("tcp://127.0.0.1:*");
  PublisherConfig config;
  config.endpoint = sub.get(zmq::sockopt::last_endpoint);
  config.topic = "topic";
  const auto publisher = Open(config);
  EXPECT_FALSE(publisher->endpoint());
  // Until the subscription has reached it, batches go nowhere.
  std::vector<zmq::message_t> frames;
  sub.set(zmq::sockopt::rcvtimeo, 20);
  uint32_t published = 0;
  while (frames.empty() && published < 3000) {
    publisher->Publish(Stored(++published));
    (void)zmq::recv_multipart(sub, std::back_inserter(frames));
  }
  ASSERT_THAT(frames, SizeIs(3));
  uint64_t sequence = Sequence(frames[1].to_string());
  sub.set(zmq::sockopt::rcvtimeo, kPatienceMs);
  const uint64_t last = sequence + 100;
  for (int i = 0; i < 100; ++i) {
    publisher->Publish(Stored(++published));
  }
  while (sequence < last) {
    frames.clear();
    ASSERT_TRUE(zmq::recv_multipart(sub, std::back_inserter(frames)));
    EXPECT_EQ(frames[0].to_string(), "topic");
    ASSERT_EQ(Sequence(frames[1].to_string()), ++sequence);
  }
}

TEST(Publisher, MalformedRequestsAreNotAnswered) {
  const auto publisher = Open(Loopback());
  publisher->Publish(Stored(1));
  zmq::context_t context;
  zmq::socket_t dealer(context, zmq::socket_type::dealer);
  dealer.set(zmq::sockopt::linger, 0);
  dealer.connect(*publisher->replay_endpoint());
  dealer.send(zmq::str_buffer("12345678"), zmq::send_flags::none);  // no empty frame
  dealer.send(zmq::message_t(), zmq::send_flags::sndmore);
  dealer.send(zmq::str_buffer("1234"), zmq::send_flags::none);  // not 8 bytes
  dealer.send(zmq::message_t(), zmq::send_flags::sndmore);
  dealer.send(zmq::message_t(std::string("\0\0\0\0\0\0\0\7", 8)), zmq::send_flags::none);
  std::vector<zmq::message_t> frames;
  ASSERT_TRUE(zmq::recv_multipart(dealer, std::back_inserter(frames)));
  EXPECT_EQ(Sequence(frames[1].to_string()), kEndOfReplay);  // of the third
}

TEST(Publisher, AnEndpointThatIsTakenIsAnError) {
  const auto publisher = Open(Loopback());
  PublisherOptions options;
  options.config.endpoint = "tcp://127.0.0.1:*";
  options.config.replay_endpoint = publisher->replay_endpoint();
  options.unix_seconds = [] { return 0.0; };
  options.block_size_tokens = [] { return 1; };
  const auto second = Publisher::Create(options);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
}

TEST(Follower, KnowsWhatWasThereBeforeItAndWhatCame) {
  const SystemClock clock;
  const auto publisher = Open(Loopback());
  publisher->Publish(Stored(1));
  publisher->Publish(Stored(2));
  Known known;
  Follower follower(known, clock);
  follower.Follow({{7, SourceOf(*publisher)}});
  known.AwaitHeld(7, {1, 2});
  publisher->Publish(Removed(1));
  publisher->Publish(Stored(3));
  known.AwaitHeld(7, {2, 3});
}

TEST(Follower, StartsOverWhenWhatItMissedIsNotKept) {
  const SystemClock clock;
  PublisherConfig config = Loopback();
  config.buffer_steps = 2;
  const auto publisher = Open(config);
  std::set<uint64_t> held;
  for (uint32_t i = 1; i <= 50; ++i) {
    publisher->Publish(Stored(i));
    held.insert(i);
  }
  publisher->Publish(Removed(7));
  held.erase(7);
  Known known;
  Follower follower(known, clock);
  follower.Follow({{1, SourceOf(*publisher)}});
  known.AwaitHeld(1, held);
}

TEST(Follower, BeginsAnewWithAnotherLifeOfThePublisherAndForgetsWhomItLetsGo) {
  const SystemClock clock;
  Known known;
  Follower follower(known, clock, {.replay_timeout_us = 200'000});
  auto publisher = Open(Loopback());
  const EventSource first = SourceOf(*publisher);
  follower.Follow({{1, first}});
  publisher->Publish(Stored(1));
  known.AwaitHeld(1, {1});
  // The same addresses, another process.
  publisher.reset();
  PublisherConfig config = Loopback();
  config.endpoint = first.endpoint;  // with a wildcard: to be bound, not connected
  config.endpoint.replace(config.endpoint.find("127.0.0.1"), 9, "*");
  config.replay_endpoint = first.replay_endpoint;
  publisher = Open(config);
  publisher->Publish(Stored(5));
  EventSource second = first;
  second.instance = "2";
  follower.Follow({{1, second}});
  known.AwaitHeld(1, {5});
  follower.Follow({});
  known.AwaitHeld(1, {});
}

TEST(Follower, FollowsManyAndSurvivesThoseWhoAreNotThere) {
  const SystemClock clock;
  Known known;
  Follower follower(known, clock);
  std::vector<std::unique_ptr<Publisher>> publishers;
  std::map<uint64_t, EventSource> sources = {
      {100, {"tcp://127.0.0.1:1", "tcp://127.0.0.1:1", "kv", "x"}},
      {101, {"no endpoint", std::nullopt, "kv", "x"}}};
  for (uint32_t i = 0; i < 5; ++i) {
    publishers.push_back(Open(Loopback()));
    sources[i] = SourceOf(*publishers.back());
  }
  follower.Follow(sources);
  for (uint32_t round = 1; round <= 20; ++round) {
    for (uint32_t i = 0; i < 5; ++i) {
      publishers[i]->Publish(Stored(round * 10 + i));
    }
  }
  for (uint32_t i = 0; i < 5; ++i) {
    std::set<uint64_t> held;
    for (uint32_t round = 1; round <= 20; ++round) {
      held.insert(round * 10 + i);
    }
    known.AwaitHeld(i, held);
  }
}

}  // namespace
}  // namespace kvik::events
