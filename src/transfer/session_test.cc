// SPDX-License-Identifier: Apache-2.0
// A session against a peer that follows no rules: bytes and frames made by hand.
#include "transfer/session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/rng.h"
#include "transfer/payload.h"
#include "transfer/testing/fake_pool.h"
#include "transfer/testing/hello_payload.h"

namespace kvik::transfer {
namespace {

using testing::BytesOf;
using testing::HelloPayload;

class Events final : public SessionEvents {
 public:
  void OnHello(const Hello& peer) override { hello = peer; }
  std::shared_ptr<SendBudget> OnOpened(uint32_t stream, uint16_t /*method*/, int64_t /*deadline*/,
                                       bool /*request_only*/, SharedBytes /*request*/) override {
    opened.push_back(stream);
    return std::make_shared<SendBudget>(1 << 20);
  }
  void OnMessage(uint32_t /*stream*/, Message message) override {
    received += message.bytes.size_bytes();
    if (hold) {
      held.push_back(std::move(message));
    }
  }
  void OnWritable(uint32_t /*stream*/) override {}
  void OnEnded(uint32_t stream, const Result<void>& outcome, const StreamStats&) override {
    ended.emplace_back(stream, outcome);
  }

  std::optional<Hello> hello;
  std::vector<uint32_t> opened;
  std::vector<Message> held;
  bool hold = false;
  size_t received = 0;
  std::vector<std::pair<uint32_t, Result<void>>> ended;
};

// The accepting side of a connection whose other side is the test.
class Hostile : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.limits.max_frame_bytes = 8192;
    options_.limits.window_bytes = 32 << 10;
    options_.limits.max_streams = 4;
    session_ = std::make_unique<Session>(
        options_, /*connecting=*/false, clock_, pool_, [](uint32_t) {}, events_);
  }
  ~Hostile() override {
    events_.held.clear();
    session_.reset();
    EXPECT_EQ(pool_->live_buffers(), 0U);
  }

  Result<void> Feed(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      size_t taken = 0;
      for (const iovec& part : session_->ReadParts()) {
        const size_t size = std::min(part.iov_len, bytes.size());
        std::memcpy(part.iov_base, bytes.data(), size);
        bytes = bytes.subspan(size);
        taken += size;
      }
      KVIK_TRY(session_->Received(taken));
    }
    return {};
  }

  // A frame with everything right but what the test has put into `header`.
  std::vector<std::byte> Frame(FrameHeader header, const std::vector<std::byte>& payload = {}) {
    header.sequence = sequence_++;
    header.payload_bytes = static_cast<uint32_t>(payload.size());
    header.payload_crc = Crc32c(payload);
    const HeaderBytes bytes = EncodeHeader(header);
    std::vector<std::byte> frame(bytes.size() + payload.size());
    std::copy(bytes.begin(), bytes.end(), frame.begin());
    std::copy(payload.begin(), payload.end(), frame.begin() + kFrameHeaderBytes);
    return frame;
  }
  Result<void> Send(const FrameHeader& header, const std::vector<std::byte>& payload = {}) {
    return Feed(Frame(header, payload));
  }

  void Greet() {
    const auto greeted = Send({.type = FrameType::kHello}, HelloPayload());
    ASSERT_TRUE(greeted) << greeted.error().message;
    ASSERT_TRUE(session_->ready());
  }
  static std::vector<std::byte> OpenPayload(size_t request_bytes = 0) {
    std::vector<std::byte> payload;
    PayloadWriter writer(payload);
    writer.Put(uint16_t{1});
    writer.Put(uint8_t{128});
    writer.Put(uint64_t{0});
    payload.resize(payload.size() + request_bytes);
    return payload;
  }
  void OpenStream(uint32_t stream) {
    const auto opened = Send({.type = FrameType::kOpen, .stream = stream}, OpenPayload());
    ASSERT_TRUE(opened) << opened.error().message;
  }
  // What the session has written, and whether a close frame with `text` is in it.
  std::vector<std::byte> Output() {
    std::vector<std::byte> all;
    for (;;) {
      const auto parts = session_->WriteParts(false);
      if (parts.empty()) {
        return all;
      }
      size_t size_bytes = 0;
      for (const iovec& part : parts) {
        const auto* bytes = static_cast<const std::byte*>(part.iov_base);
        all.insert(all.end(), bytes, bytes + part.iov_len);
        size_bytes += part.iov_len;
      }
      session_->Written(size_bytes);
    }
  }
  void ExpectFailed(const Result<void>& result, ErrorCode code, const std::string& text) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, code) << result.error().message;
    EXPECT_NE(result.error().message.find(text), std::string::npos) << result.error().message;
    EXPECT_TRUE(session_->failed());
    // The peer is told.
    const auto output = Output();
    const std::string_view all(reinterpret_cast<const char*>(output.data()), output.size());
    EXPECT_NE(all.find(result.error().message.substr(0, 40)), std::string_view::npos);
    EXPECT_TRUE(session_->over());
  }

  ManualClock clock_{1000};
  Session::Options options_;
  std::shared_ptr<ReceivePool> pool_ = std::make_shared<ReceivePool>(8192, 4);
  Events events_;
  std::unique_ptr<Session> session_;
  uint32_t sequence_ = 0;
};

TEST_F(Hostile, SomebodyElsesProtocol) {
  const std::string text = "GET / HTTP/1.1\r\nHost: kvik.example\r\n\r\n";
  ExpectFailed(Feed(std::as_bytes(std::span(text))), ErrorCode::kCorrupt, "not a frame");
}

TEST_F(Hostile, AnotherVersion) {
  auto frame = Frame({.type = FrameType::kHello}, HelloPayload());
  frame[2] = std::byte{9};
  ExpectFailed(Feed(frame), ErrorCode::kUnsupported, "protocol version 9");
}

TEST_F(Hostile, AnythingBeforeTheHello) {
  ExpectFailed(Send({.type = FrameType::kOpen, .stream = 1}, OpenPayload()), ErrorCode::kCorrupt,
               "before the hello");
}

TEST_F(Hostile, TwoHellos) {
  Greet();
  ExpectFailed(Send({.type = FrameType::kHello}, HelloPayload()), ErrorCode::kCorrupt,
               "second hello");
}

TEST_F(Hostile, LimitsThatCannotWork) {
  ExpectFailed(Send({.type = FrameType::kHello}, HelloPayload(1 << 16, 1 << 16)),
               ErrorCode::kInvalidInput, "window");
}

TEST_F(Hostile, SizesThatNobodyHas) {
  Greet();
  FrameHeader header{.type = FrameType::kData, .stream = 1};
  header.sequence = sequence_;
  header.payload_bytes = 0xFFFFFFFF;
  // The header is valid in itself: nothing but the limit stands between it and 4 GiB of memory.
  ExpectFailed(Feed(EncodeHeader(header)), ErrorCode::kCorrupt, "a frame of 4294967295 bytes");
}

TEST_F(Hostile, ControlFramesAreSmall) {
  Greet();
  ExpectFailed(Send({.type = FrameType::kPing}, std::vector<std::byte>(4000)), ErrorCode::kCorrupt,
               "control frame");
}

TEST_F(Hostile, AHelloOfManyProfilesThatAreNotThere) {
  auto payload = HelloPayload();
  // Before the last two counts.
  const uint32_t many = 0x10000000;
  std::memcpy(payload.data() + payload.size() - 8, &many, sizeof many);
  ExpectFailed(Send({.type = FrameType::kHello}, payload), ErrorCode::kCorrupt, "hello");
}

TEST_F(Hostile, FramesOutOfOrder) {
  Greet();
  const auto first = Frame({.type = FrameType::kOpen, .stream = 1}, OpenPayload());
  const auto second = Frame({.type = FrameType::kOpen, .stream = 3}, OpenPayload());
  ExpectFailed(Feed(second), ErrorCode::kCorrupt, "where frame");
  EXPECT_TRUE(events_.opened.empty());
}

TEST_F(Hostile, AFrameTwice) {
  Greet();
  const auto frame = Frame({.type = FrameType::kOpen, .stream = 1}, OpenPayload());
  ASSERT_TRUE(Feed(frame));
  ExpectFailed(Feed(frame), ErrorCode::kCorrupt, "where frame");
}

TEST_F(Hostile, MoreThanTheWindow) {
  Greet();
  OpenStream(1);
  events_.hold = true;
  const std::vector<std::byte> payload(8000);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(Send({.type = FrameType::kData, .stream = 1}, payload)) << i;
  }
  ExpectFailed(Send({.type = FrameType::kData, .stream = 1}, payload), ErrorCode::kCorrupt,
               "window");
  EXPECT_EQ(events_.received, 32'000U);
}

TEST_F(Hostile, StreamsThatWereNeverOpened) {
  Greet();
  ExpectFailed(Send({.type = FrameType::kData, .stream = 5}, std::vector<std::byte>(10)),
               ErrorCode::kCorrupt, "never opened");
}

TEST_F(Hostile, StreamsOfTheWrongSide) {
  Greet();
  ExpectFailed(Send({.type = FrameType::kOpen, .stream = 2}, OpenPayload()), ErrorCode::kCorrupt,
               "cannot be opened");
}

TEST_F(Hostile, AStreamOpenedTwice) {
  Greet();
  OpenStream(3);
  ExpectFailed(Send({.type = FrameType::kOpen, .stream = 3}, OpenPayload()), ErrorCode::kCorrupt,
               "cannot be opened");
}

TEST_F(Hostile, MessagesAfterTheLast) {
  Greet();
  OpenStream(1);
  ASSERT_TRUE(Send({.type = FrameType::kData, .flags = kFlagLast, .stream = 1}));
  ExpectFailed(Send({.type = FrameType::kData, .stream = 1}), ErrorCode::kCorrupt,
               "where none may come");
}

TEST_F(Hostile, CreditThatWasNotUsed) {
  Greet();
  OpenStream(1);
  std::vector<std::byte> payload;
  PayloadWriter(payload).Put(uint32_t{1});
  ExpectFailed(Send({.type = FrameType::kCredit, .stream = 1}, payload), ErrorCode::kCorrupt,
               "credit");
}

TEST_F(Hostile, MoreStreamsThanAllowedAreRefusedOneByOne) {
  Greet();
  for (uint32_t stream = 1; stream <= 99; stream += 2) {
    OpenStream(stream);
  }
  EXPECT_EQ(events_.opened.size(), 4U);
  EXPECT_TRUE(session_->ready());
  // What comes for the refused ones is nobody's.
  ASSERT_TRUE(Send({.type = FrameType::kData, .stream = 99}, std::vector<std::byte>(100)));
  EXPECT_EQ(events_.received, 0U);
}

TEST_F(Hostile, APeerThatMakesUsAnswerAndDoesNotRead) {
  Greet();
  Result<void> ticked;
  const std::vector<std::byte> payload(1024);
  size_t pings = 0;
  for (; ticked && pings < 1'000'000; ++pings) {
    ASSERT_TRUE(Send({.type = FrameType::kPing}, payload));
    ticked = session_->Tick();
  }
  ASSERT_FALSE(ticked);
  EXPECT_EQ(ticked.error().code, ErrorCode::kExhausted);
  EXPECT_LT(pings, 4000U);
}

TEST_F(Hostile, NoHandshakeInTime) {
  clock_.Advance(options_.limits.handshake_timeout_us - 1);
  EXPECT_TRUE(session_->Tick());
  EXPECT_EQ(session_->NextTickMicros(), clock_.NowMicros() + 1);
  clock_.Advance(1);
  ExpectFailed(session_->Tick(), ErrorCode::kTimeout, "no handshake");
}

// Frames with random fields, everything else valid: never a crash, a leak or memory without bound.
TEST_F(Hostile, RandomFrames) {
  const uint64_t seed = 77;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  size_t survived = 0;
  for (int round = 0; round < 3000; ++round) {
    events_ = Events();
    events_.hold = rng.Below(2) == 0;
    session_ = std::make_unique<Session>(
        options_, /*connecting=*/false, clock_, pool_, [](uint32_t) {}, events_);
    sequence_ = 0;
    Greet();
    Result<void> result;
    const uint64_t frames = 1 + rng.Below(8);
    for (uint64_t i = 0; result && i < frames; ++i) {
      FrameHeader header;
      header.type = static_cast<FrameType>(2 + rng.Below(8));
      header.stream = static_cast<uint32_t>(rng.Below(8));
      header.flags = static_cast<uint8_t>(rng.Below(8));
      if (header.type != FrameType::kData && rng.Below(8) != 0) {
        header.flags = static_cast<uint8_t>(header.type == FrameType::kOpen ? rng.Below(2) : 0);
      }
      std::vector<std::byte> payload =
          BytesOf(rng.Next(), rng.Below(rng.Below(2) == 0 ? 20 : 5000));
      if (header.type == FrameType::kOpen) {
        payload = OpenPayload(payload.size());
        header.stream |= 1;
      }
      if (header.type == FrameType::kPong || header.type == FrameType::kCredit) {
        payload.resize(header.type == FrameType::kPong ? 8 : 4);
      }
      if (header.type == FrameType::kCancel) {
        payload = EncodeReason(Error{ErrorCode::kNotFound, "gone"});
      }
      result = Send(header, payload);
      EXPECT_LE(pool_->live_buffers(), 4U * 1025U);
    }
    survived += result ? 1 : 0;
    (void)Output();
  }
  EXPECT_GT(survived, 0U);
  events_ = Events();
}

TEST(SendBudget, TellsOnceThatThereIsRoom) {
  SendBudget budget(100);
  EXPECT_TRUE(budget.TryTake(1000));  // of any size, while below the limit
  EXPECT_FALSE(budget.TryTake(1));
  EXPECT_FALSE(budget.Give(900));  // 100 are left
  EXPECT_TRUE(budget.Give(60));
  EXPECT_FALSE(budget.Give(10));
  EXPECT_EQ(budget.queued(), 30U);
}

TEST(Hello, EveryMismatchIsNamed) {
  Hello mine;
  mine.model_fingerprint = 1;
  mine.kv_layout = "a";
  mine.block_size_tokens = 16;
  mine.domain.bytes[0] = 1;
  mine.numerics.value = 1;
  EXPECT_TRUE(CheckPeer(mine, mine, {true}));
  EXPECT_TRUE(CheckPeer(mine, Hello(), {true}));  // a pool fits everybody
  const std::pair<std::function<void(Hello&)>, const char*> cases[] = {
      {[](Hello& h) { h.model_fingerprint = 2; }, "fingerprint"},
      {[](Hello& h) { h.kv_layout.assign(1, 'b'); }, "layout"},
      {[](Hello& h) { h.block_size_tokens = 32; }, "block"},
      {[](Hello& h) { h.domain.bytes[0] = 2; }, "domain"},
      {[](Hello& h) { h.numerics.value = 2; }, "numerics"}};
  for (const auto& [change, name] : cases) {
    Hello theirs = mine;
    change(theirs);
    for (const auto& result : {CheckPeer(mine, theirs, {true}), CheckPeer(theirs, mine, {true})}) {
      ASSERT_FALSE(result) << name;
      EXPECT_NE(result.error().message.find(name), std::string::npos) << result.error().message;
    }
  }
  // Other numerics alone give no exact hit, which is no reason to refuse.
  Hello theirs = mine;
  theirs.numerics.value = 2;
  EXPECT_TRUE(CheckPeer(mine, theirs, {}));
}

TEST(Hello, SurvivesItsEncoding) {
  Hello hello;
  hello.role = Role::kPrefill;
  hello.node_name = "p1";
  hello.model_fingerprint = 0x1122334455667788;
  hello.domain.bytes[15] = 3;
  hello.numerics.value = 5;
  hello.kv_layout = "bf16";
  hello.block_size_tokens = 32;
  hello.profiles = {{7, 1e9F, 2e9F}, {8, 0, 3.5e8F}};
  hello.extra = BytesOf(1, 1000);
  std::vector<std::byte> bytes;
  ASSERT_TRUE(EncodeHello(hello, bytes));
  const auto decoded = DecodeHello(bytes);
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(*decoded, hello);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(DecodeHello(std::span(bytes).first(size))) << size;
  }
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(DecodeHello(bytes));
}

TEST(Wire, HeadersSurviveAndDamageIsSeen) {
  FrameHeader header;
  header.type = FrameType::kData;
  header.flags = kFlagLast | kFlagMore;
  header.kind = 3;
  header.stream = 0x01020304;
  header.tag = 9;
  header.sequence = 77;
  header.payload_bytes = 1234;
  header.payload_crc = 0xDEADBEEF;
  const HeaderBytes bytes = EncodeHeader(header);
  const auto decoded = DecodeHeader(bytes);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(*decoded, header);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    HeaderBytes damaged = bytes;
    damaged[bit / 8] ^= std::byte{static_cast<unsigned char>(1U << (bit % 8))};
    EXPECT_FALSE(DecodeHeader(damaged)) << bit;
  }
}

}  // namespace
}  // namespace kvik::transfer
