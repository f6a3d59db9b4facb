// SPDX-License-Identifier: Apache-2.0
// What strangers can do to a port that peers come to: nothing that lasts.
#include "transfer/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "transfer/testing/hello_payload.h"
#include "transfer/testing/manual_network.h"
#include "transfer/wire.h"

namespace kvik::transfer {
namespace {

constexpr int64_t kSecond = 1'000'000;
constexpr size_t kMostConnections = 8;

// The far end of a connection, that speaks as the test says.
class Stranger {
 public:
  explicit Stranger(Endpoint& port) {
    auto [near, far] = MakeLoopbackPair(/*capacity_bytes=*/4096);
    channel_ = std::move(near);
    port.Adopt(std::move(far), /*connecting=*/false, kNever, nullptr);
  }
  // False: the port has hung up.
  bool Say(std::span<const std::byte> bytes) {
    const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    return channel_->Write(std::span(&part, 1)).has_value();
  }
  bool Say(const std::string& text) { return Say(std::as_bytes(std::span(text))); }
  // Whether the port has hung up, after what it said before.
  bool HungUp() {
    for (;;) {
      std::vector<std::byte> bytes(4096);
      const iovec part{bytes.data(), bytes.size()};
      const auto size = channel_->Read(std::span(&part, 1));
      if (!size.has_value()) {
        return true;
      }
      if (*size == 0) {
        return false;
      }
      heard_.append(reinterpret_cast<const char*>(bytes.data()), *size);
    }
  }
  [[nodiscard]] const std::string& heard() const { return heard_; }

 private:
  std::unique_ptr<ByteChannel> channel_;
  std::string heard_;
};

std::vector<std::byte> HelloFrame(uint32_t payload_bytes, uint8_t version = 1) {
  const std::vector<std::byte> payload = testing::HelloPayload();
  FrameHeader header;
  header.type = FrameType::kHello;
  header.payload_bytes = payload_bytes == 0 ? static_cast<uint32_t>(payload.size()) : payload_bytes;
  header.payload_crc = Crc32c(payload);
  const auto head = EncodeHeader(header);
  std::vector<std::byte> frame(head.begin(), head.end());
  if (version != 1) {
    frame[2] = std::byte{version};
    const uint32_t crc = Crc32c(std::span(frame).first(28));
    std::memcpy(frame.data() + 28, &crc, sizeof crc);
  }
  frame.insert(frame.end(), payload.begin(), payload.end());
  return frame;
}

class Port : public ::testing::Test {
 protected:
  void SetUp() override {
    EndpointOptions options;
    options.max_connections = kMostConnections;
    port_ = &network_.Add(options, nullptr);
    peer_ = &network_.Add({}, nullptr);
  }
  // A peer that behaves still gets through.
  void ExpectOpenForPeers() {
    const auto connection = network_.Connect(*peer_, *port_);
    ASSERT_TRUE(connection.has_value()) << connection.error().message;
    (*connection)->Close(Err(ErrorCode::kUnavailable, "done"));
    network_.RunFor(2 * kSecond);
  }

  testing::ManualNetwork network_;
  Endpoint* port_ = nullptr;
  Endpoint* peer_ = nullptr;
};

TEST_F(Port, WhoSpeaksSomethingElseIsTurnedAwayAtOnce) {
  Stranger web(*port_);
  web.Say("GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/8.0\r\n\r\n");
  Stranger newer(*port_);
  newer.Say(HelloFrame(0, /*version=*/9));
  Stranger huge(*port_);
  huge.Say(HelloFrame(uint32_t{1} << 30));  // is believed by nobody, and no memory taken for it
  network_.Settle();
  EXPECT_TRUE(web.HungUp());
  EXPECT_TRUE(newer.HungUp());
  EXPECT_TRUE(huge.HungUp());
  EXPECT_THAT(newer.heard(), ::testing::HasSubstr("version 9"));
  const EndpointStats stats = port_->stats();
  EXPECT_EQ(stats.accepted, 3U);
  EXPECT_EQ(stats.failed_handshakes, 3U);
  EXPECT_EQ(stats.connections, 0U);
  EXPECT_EQ(port_->live_buffers(), 0U);
  ExpectOpenForPeers();
}

TEST_F(Port, WhoSaysNothingOrHardlyAnythingHasUntilTheHandshakeIsDue) {
  Stranger silent(*port_);
  Stranger slow(*port_);
  const auto hello = HelloFrame(0);
  const ConnectionLimits limits;
  const int64_t pause_us = limits.handshake_timeout_us / 20;
  for (size_t i = 0; i < 19; ++i) {
    ASSERT_TRUE(slow.Say(std::span(hello).subspan(i, 1)));
    network_.RunFor(pause_us);
  }
  EXPECT_EQ(port_->stats().connections, 2U);
  network_.RunFor(2 * pause_us + kSecond);  // and it may read why
  EXPECT_TRUE(silent.HungUp());
  EXPECT_TRUE(slow.HungUp());
  EXPECT_THAT(slow.heard(), ::testing::HasSubstr("no handshake"));
  EXPECT_EQ(port_->stats().failed_handshakes, 2U);
  EXPECT_EQ(port_->stats().connections, 0U);
}

TEST_F(Port, ThousandsWhoConnectAndSayNothingKeepNobodyOut) {
  const auto peer = network_.Connect(*peer_, *port_);
  ASSERT_TRUE(peer.has_value());
  std::vector<std::unique_ptr<Stranger>> crowd;
  for (int i = 0; i < 1000; ++i) {
    crowd.push_back(std::make_unique<Stranger>(*port_));
  }
  network_.Settle();
  EXPECT_EQ(port_->stats().connections, kMostConnections);
  EXPECT_EQ(port_->stats().over_limit, 1001 - kMostConnections);
  EXPECT_TRUE((*peer)->alive()) << "one that has said hello stays";
  EXPECT_TRUE(crowd.front()->HungUp());
  EXPECT_FALSE(crowd.back()->HungUp());
  ExpectOpenForPeers();
  network_.RunFor(10 * kSecond);
  EXPECT_EQ(port_->stats().connections, 1U);
  EXPECT_EQ(port_->stats().greeted, 2U);
}

TEST_F(Port, MorePeersThanThereMayBeAreRefused) {
  std::vector<std::shared_ptr<Connection>> peers;
  for (size_t i = 0; i < kMostConnections; ++i) {
    const auto peer = network_.Connect(*peer_, *port_);
    ASSERT_TRUE(peer.has_value());
    peers.push_back(*peer);
  }
  EXPECT_FALSE(network_.Connect(*peer_, *port_).has_value());
  for (const auto& peer : peers) {
    EXPECT_TRUE(peer->alive());
  }
  EXPECT_EQ(port_->stats().over_limit, 1U);
}

TEST_F(Port, APeerThatBreaksTheProtocolIsCounted) {
  Stranger peer(*port_);
  peer.Say(HelloFrame(0));
  network_.Settle();
  EXPECT_EQ(port_->stats().greeted, 1U);
  peer.Say(HelloFrame(0));
  network_.Settle();
  EXPECT_TRUE(peer.HungUp());
  EXPECT_EQ(port_->stats().broken, 1U);
  EXPECT_EQ(port_->stats().failed_handshakes, 0U);
  EXPECT_EQ(port_->stats().connections, 0U);
}

}  // namespace
}  // namespace kvik::transfer
