// SPDX-License-Identifier: Apache-2.0
// The emulated link under a manual clock: what it promises, to the microsecond.
#include "transfer/emulated_link.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "transfer/link_spec.h"
#include "transfer/loopback.h"
#include "transfer/testing/fake_pool.h"
#include "transfer/testing/manual_network.h"
#include "transfer/testing/recording.h"

namespace kvik::transfer {
namespace {

using testing::BytesOf;
using testing::ManualNetwork;
using testing::RecordingHandler;
using testing::RecordingSink;

constexpr int64_t kSecond = 1'000'000;

LinkSpec Spec(const std::string& text) {
  auto spec = LinkSpec::Parse(text);
  EXPECT_TRUE(spec) << text << ": " << spec.error().message;
  return *spec;
}

TEST(LinkSpec, ParsesWhatItPrints) {
  for (const std::string text :
       {"", "rate=1Gbit,delay=2ms,jitter=0.5ms,loss=0.001", "rate=2Gbit@0s/100Mbit@20s/2Gbit@40s",
        "rate=5MB,rto=50ms,burst=1KiB,queue=64KiB,packet=1000,seed=7", "resets=0.1@0s/0@10s",
        "rate=100kbit@1s/0@2.5s", "delay=0"}) {
    const LinkSpec spec = Spec(text);
    EXPECT_EQ(Spec(spec.ToString()), spec) << text << " -> " << spec.ToString();
  }
  const LinkSpec spec = Spec("rate=1Gbit@1s/8Mbit@2s,delay=1.5ms");
  EXPECT_EQ(spec.rate_bytes_per_second.At(0), 1.25e8);
  EXPECT_EQ(spec.rate_bytes_per_second.At(2 * kSecond - 1), 1.25e8);
  EXPECT_EQ(spec.rate_bytes_per_second.At(2 * kSecond), 1e6);
  EXPECT_EQ(spec.delay_us.At(0), 1500);
}

TEST(LinkSpec, SaysWhatIsWrong) {
  for (const std::string text :
       {"rate", "rate=", "rate=5", "rate=1Gbit/2Gbit", "rate=1Gbit@2s/2Gbit@1s", "loss=2",
        "loss=-1", "speed=1Gbit", "delay=5kg", "rate=nan", "rate=infGbit", "packet=0",
        "delay=1ms,,"}) {
    const auto spec = LinkSpec::Parse(text);
    ASSERT_FALSE(spec) << text;
    EXPECT_EQ(spec.error().code, ErrorCode::kInvalidInput);
    EXPECT_EQ(spec.error().message.find("link \""), 0U) << spec.error().message;
  }
}

// A loopback whose near end is behind a link, and what a test needs to write and read it.
class Link {
 public:
  explicit Link(const std::string& text)
      : link_(std::make_shared<EmulatedLink>(Spec(text), clock)) {
    auto [inner, outer] = MakeLoopbackPair();
    near = EmulatedLink::Wrap(link_, std::move(inner));
    far = std::move(outer);
  }
  // What is taken.
  size_t Write(const std::vector<std::byte>& bytes, size_t from = 0) {
    const iovec part{const_cast<std::byte*>(bytes.data() + from), bytes.size() - from};
    const auto size = near->Write(std::span(&part, 1));
    return size ? *size : 0;
  }
  // Lets the link work and reads what has arrived at the far end.
  std::vector<std::byte> Arrived() {
    std::byte none;
    const iovec nowhere{&none, 0};
    (void)near->Read(std::span(&nowhere, 1));
    return ReadAll(*far);
  }
  static std::vector<std::byte> ReadAll(ByteChannel& channel) {
    std::vector<std::byte> all;
    std::vector<std::byte> buffer(size_t{1} << 16);
    for (;;) {
      const iovec part{buffer.data(), buffer.size()};
      const auto size = channel.Read(std::span(&part, 1));
      if (!size || *size == 0) {
        return all;
      }
      all.insert(all.end(), buffer.begin(), buffer.begin() + static_cast<ptrdiff_t>(*size));
    }
  }
  // Writes all of `bytes` and reads until they have arrived; the time each byte took, in all.
  int64_t Carry(const std::vector<std::byte>& bytes) {
    size_t written = 0;
    std::vector<std::byte> arrived;
    while (arrived.size() < bytes.size()) {
      written += Write(bytes, written);
      const auto more = Arrived();
      arrived.insert(arrived.end(), more.begin(), more.end());
      if (arrived.size() < bytes.size() && more.empty()) {
        const int64_t next_us = near->NextEventMicros();
        EXPECT_GT(next_us, clock.NowMicros());
        if (next_us <= clock.NowMicros() || next_us == kNever) {
          return -1;
        }
        clock.Set(next_us);
      }
    }
    EXPECT_EQ(arrived, bytes);
    return clock.NowMicros();
  }

  ManualClock clock{5 * kSecond};
  std::unique_ptr<ByteChannel> near;
  std::unique_ptr<ByteChannel> far;

 private:
  std::shared_ptr<EmulatedLink> link_;
};

TEST(EmulatedLink, RateAndDelayAreExact) {
  Link link("rate=80Mbit,delay=3ms,burst=0");
  const int64_t start_us = link.clock.NowMicros();
  EXPECT_NEAR(static_cast<double>(link.Carry(BytesOf(1, 10'000'000)) - start_us), 1'003'000, 5);
  // After a pause, too: the link does not save up capacity.
  link.clock.Advance(kSecond);
  const int64_t again_us = link.clock.NowMicros();
  EXPECT_NEAR(static_cast<double>(link.Carry(BytesOf(2, 1'000'000)) - again_us), 103'000, 5);
}

TEST(EmulatedLink, ABurstLeavesAtOnce) {
  Link link("rate=8Mbit,burst=10KB");
  EXPECT_EQ(link.Carry(BytesOf(1, 10'000)), 5 * kSecond);
  EXPECT_NEAR(static_cast<double>(link.Carry(BytesOf(1, 10'000))), 5 * kSecond + 10'000, 2);
}

TEST(EmulatedLink, TheRateFollowsItsSchedule) {
  // 1 MB/s for a second, nothing for two, then 10 MB/s.
  Link link("rate=8Mbit@0s/0@1s/80Mbit@3s,burst=0");
  EXPECT_NEAR(static_cast<double>(link.Carry(BytesOf(1, 11'000'000))),
              static_cast<double>(5 * kSecond + 4 * kSecond), 10);
}

TEST(EmulatedLink, WritersAreHeldBack) {
  Link link("rate=8Mbit,queue=20KB,burst=0");
  const auto bytes = BytesOf(1, 1'000'000);
  EXPECT_EQ(link.Write(bytes), 20'000U);
  EXPECT_EQ(link.Write(bytes), 0U);
  EXPECT_EQ(link.near->BacklogBytes(), 20'000U);
  // Half of the queue is empty: worth trying again.
  EXPECT_EQ(link.near->NextEventMicros(), link.clock.NowMicros() + 1448);  // a segment arrives
  link.clock.Advance(10'136);                                              // seven segments
  EXPECT_EQ(link.Write(bytes), 7U * 1448U);
}

TEST(EmulatedLink, ALostPacketStallsOneTimeout) {
  // Every packet is lost once.
  Link link("delay=1ms,loss=1,rto=200ms");
  const int64_t start_us = link.clock.NowMicros();
  EXPECT_EQ(link.Carry(BytesOf(1, 1000)) - start_us, 201'000);
}

TEST(EmulatedLink, LossComesAsOftenAsItShould) {
  Link link("rate=80Mbit,loss=0.001,rto=50ms,burst=0,seed=3");
  const int64_t start_us = link.clock.NowMicros();
  const auto bytes = BytesOf(1, 14'480'000);  // 10,000 packets
  link.Carry(bytes);
  const double stalls =
      (static_cast<double>(link.clock.NowMicros() - start_us) - 1'448'000.0) / 50'000.0;
  // Stalls overlap with what is sent meanwhile, so there is only an upper bound on the time.
  EXPECT_GE(stalls, 0);
  EXPECT_LE(stalls, 20);
}

TEST(EmulatedLink, JitterKeepsTheOrderAndItsBounds) {
  Link link("delay=10ms,jitter=5ms,seed=9");
  Rng rng(4);
  for (int i = 0; i < 200; ++i) {
    const int64_t start_us = link.clock.NowMicros();
    const int64_t took_us =
        link.Carry(BytesOf(static_cast<uint64_t>(i), 1 + rng.Below(100))) - start_us;
    EXPECT_GE(took_us, 10'000);
    EXPECT_LE(took_us, 15'000);
    link.clock.Advance(rng.Range(0, 20'000));
  }
}

TEST(EmulatedLink, TheSameSeedIsTheSameLink) {
  const auto run = [](const std::string& seed) {
    Link link("rate=10Mbit,delay=1ms,jitter=3ms,loss=0.01,seed=" + seed);
    std::vector<int64_t> times;
    for (uint64_t i = 0; i < 50; ++i) {
      times.push_back(link.Carry(BytesOf(i, 5000)));
    }
    return times;
  };
  EXPECT_EQ(run("5"), run("5"));
  EXPECT_NE(run("5"), run("6"));
}

TEST(EmulatedLink, ResetsComeAtTheirRate) {
  double sum_s = 0;
  constexpr int kLinks = 400;
  for (int i = 0; i < kLinks; ++i) {
    Link link(std::string("resets=0.5,seed=").append(std::to_string(i)));
    const int64_t next_us = link.near->NextEventMicros();
    ASSERT_NE(next_us, kNever);
    link.clock.Set(next_us - 1);
    std::byte byte{};
    iovec part{&byte, 1};
    EXPECT_TRUE(link.near->Write(std::span(&part, 1)));
    link.clock.Advance(1);
    EXPECT_FALSE(link.near->Write(std::span(&part, 1)));
    EXPECT_FALSE(link.near->Read(std::span(&part, 1)));
    sum_s += static_cast<double>(next_us - 5 * kSecond) / kSecond;
  }
  // 2 s on average; the standard error is 0.1 s.
  EXPECT_NEAR(sum_s / kLinks, 2.0, 0.4);
}

TEST(EmulatedLink, ConnectionsOfALinkShareIt) {
  RecordingHandler handler;
  ManualNetwork network;
  EndpointOptions options;
  options.link = std::make_shared<EmulatedLink>(Spec("rate=80Mbit,burst=0"), network.clock());
  options.link_direction = EmulatedLink::Direction::kOut;
  Endpoint& server = network.Add(options, &handler);
  Endpoint& client = network.Add({}, nullptr);
  handler.on_stream = [](const IncomingStream& incoming, const auto&) {
    Message message;
    message.bytes = SharedBytes::Own(BytesOf(1, 5'000'000));
    message.last = true;
    incoming.stream->Send(std::move(message));
  };
  const auto a = network.Connect(client, server);
  const auto b = network.Connect(client, server);
  ASSERT_TRUE(a && b);
  const auto sink_a = std::make_shared<RecordingSink>();
  const auto sink_b = std::make_shared<RecordingSink>();
  const int64_t start_us = network.clock().NowMicros();
  (*a)->Open({}, {}, sink_a);
  (*b)->Open({}, {}, sink_b);
  ASSERT_TRUE(network.RunFor(10 * kSecond, [&] { return sink_a->ended() && sink_b->ended(); }));
  EXPECT_TRUE(sink_a->ok() && sink_b->ok());
  // 10 MB at 10 MB/s, and little more for headers and heartbeats.
  EXPECT_NEAR(static_cast<double>(network.clock().NowMicros() - start_us), 1e6, 5000);
}

// What a connection says about the wire is what the wire is, whether or not the producer keeps up.
TEST(EmulatedLink, TheWireIsMeasuredAlsoBehindASlowProducer) {
  for (const int64_t pause_us : {0, 20'000}) {
    for (const double mbit : {20.0, 400.0}) {
      RecordingHandler handler;
      ManualNetwork network;
      EndpointOptions options;
      options.link = std::make_shared<EmulatedLink>(
          Spec(std::string("rate=").append(std::to_string(mbit)).append("Mbit,delay=2ms,burst=0")),
          network.clock());
      options.link_direction = EmulatedLink::Direction::kOut;
      options.limits.send_buffer_bytes = size_t{64} << 20;
      Endpoint& server = network.Add(options, &handler);
      Endpoint& client = network.Add({}, nullptr);
      const auto connection = network.Connect(client, server);
      ASSERT_TRUE(connection);
      const auto sink = std::make_shared<RecordingSink>();
      (*connection)->Open({}, {}, sink);
      network.RunFor(kSecond);
      const auto producer = handler.sinks.at(0)->stream;
      for (uint64_t layer = 0; layer < 30; ++layer) {
        Message message;
        message.bytes = SharedBytes::Own(BytesOf(layer, 300'000));
        message.last = layer == 29;
        producer->Send(std::move(message));
        network.RunFor(pause_us);
      }
      ASSERT_TRUE(network.RunFor(60 * kSecond, [&] { return sink->ended(); }));
      ASSERT_TRUE(sink->ok());
      const double goodput =
          static_cast<double>(sink->stats.wire_bytes) / static_cast<double>(sink->stats.wire_us);
      EXPECT_NEAR(goodput / (mbit / 8), 1.0, 0.03) << pause_us << " us, " << mbit << " Mbit";
      EXPECT_GT(sink->stats.wire_bytes, 30U * 100'000U);
      // A ping there and back, once over the link; the answer may stand behind data.
      EXPECT_GE((*connection)->stats().rtt_us, 2000);
    }
  }
}

}  // namespace
}  // namespace kvik::transfer
