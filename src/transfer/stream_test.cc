// SPDX-License-Identifier: Apache-2.0
// Streams between two endpoints under a manual clock: what they carry, when they end and what is
// left of them afterwards.
#include "transfer/stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "transfer/testing/fake_pool.h"
#include "transfer/testing/faulty_channel.h"
#include "transfer/testing/manual_network.h"
#include "transfer/testing/recording.h"
#include "transfer/wire.h"

namespace kvik::transfer {
namespace {

using testing::BytesOf;
using testing::Faults;
using testing::FaultyChannel;
using testing::ManualNetwork;
using testing::RecordingHandler;
using testing::RecordingSink;

constexpr int64_t kSecond = 1'000'000;

SharedBytes Shared(std::vector<std::byte> bytes) { return SharedBytes::Own(std::move(bytes)); }

Message Bytes(std::vector<std::byte> bytes, bool last = false) {
  Message message;
  message.bytes = Shared(std::move(bytes));
  message.last = last;
  return message;
}

ManualNetwork::Wrap Through(std::shared_ptr<Faults> faults) {
  return [faults](std::unique_ptr<ByteChannel> channel) {
    return std::make_unique<FaultyChannel>(std::move(channel), faults);
  };
}

class Streams : public ::testing::Test {
 protected:
  // `limits` of both sides.
  void Start(const ConnectionLimits& limits = {}, std::shared_ptr<Faults> near = nullptr,
             std::shared_ptr<Faults> far = nullptr) {
    EndpointOptions options;
    options.limits = limits;
    client_ = &network_.Add(options, nullptr);
    server_ = &network_.Add(options, &handler_);
    auto connection = network_.Connect(*client_, *server_, near ? Through(near) : nullptr,
                                       far ? Through(far) : nullptr);
    ASSERT_TRUE(connection) << connection.error().message;
    connection_ = *connection;
  }

  std::shared_ptr<RecordingSink> Open(const OpenOptions& options = {},
                                      std::vector<std::byte> request = {}) {
    auto sink = std::make_shared<RecordingSink>();
    sink->stream = connection_->Open(options, Shared(std::move(request)), sink);
    return sink;
  }

  // Everything is over and nothing is left.
  void ExpectNothingLeft() {
    network_.Settle();
    EXPECT_EQ(connection_->stats().open_streams, 0U);
    for (const auto& connection : handler_.connections) {
      EXPECT_EQ(connection->stats().open_streams, 0U);
    }
    EXPECT_EQ(client_->live_buffers(), 0U);
    EXPECT_EQ(server_->live_buffers(), 0U);
  }

  RecordingHandler handler_;
  ManualNetwork network_;
  Endpoint* client_ = nullptr;
  Endpoint* server_ = nullptr;
  std::shared_ptr<Connection> connection_;
};

// Sends `size_bytes` of answer `number`, whole, and finishes.
void Answer(RecordingHandler& handler, size_t size_bytes) {
  handler.on_stream = [&handler, size_bytes](const IncomingStream& incoming, const auto&) {
    incoming.stream->Send(Bytes(BytesOf(handler.sinks.size(), size_bytes), true));
  };
}

TEST_F(Streams, RequestAndAnswer) {
  Start();
  Answer(handler_, 1'000'000);
  const auto sink = Open({.method = 9}, BytesOf(77, 1000));
  network_.Settle();
  ASSERT_TRUE(sink->ok());
  EXPECT_EQ(sink->bytes, BytesOf(1, 1'000'000));
  EXPECT_EQ(handler_.requests.at(0), BytesOf(77, 1000));
  EXPECT_EQ(handler_.methods.at(0), 9);
  EXPECT_TRUE(handler_.sinks.at(0)->ok());
  EXPECT_EQ(sink->stats.received_bytes, 1'000'000U);
  ExpectNothingLeft();
}

TEST_F(Streams, BothSidesOpenStreams) {
  EndpointOptions options;
  RecordingHandler client_handler;
  Answer(client_handler, 100);
  client_ = &network_.Add(options, &client_handler);
  server_ = &network_.Add(options, &handler_);
  auto connection = network_.Connect(*client_, *server_);
  ASSERT_TRUE(connection);
  auto sink = std::make_shared<RecordingSink>();
  handler_.connections.at(0)->Open({}, {}, sink);
  network_.Settle();
  ASSERT_TRUE(sink->ok());
  EXPECT_EQ(sink->bytes, BytesOf(1, 100));
  network_.Close();  // before the handler of this scope
}

TEST_F(Streams, BytesInTheSmallestPieces) {
  auto near = std::make_shared<Faults>();
  auto far = std::make_shared<Faults>();
  near->largest_read = far->largest_read = 1;
  near->largest_write = far->largest_write = 3;
  Start({}, near, far);
  Answer(handler_, 20'000);
  const auto sink = Open({}, BytesOf(5, 700));
  network_.RunFor(kSecond, [&] { return sink->ended(); });
  ASSERT_TRUE(sink->ok());
  EXPECT_EQ(sink->bytes, BytesOf(1, 20'000));
  ExpectNothingLeft();
}

TEST_F(Streams, AProducerIsReadWhileItProduces) {
  Start();
  const auto sink = Open();
  network_.Settle();
  const auto producer = handler_.sinks.at(0)->stream;
  std::vector<std::byte> all;
  for (uint64_t layer = 0; layer < 10; ++layer) {
    const auto bytes = BytesOf(layer, 5000);
    all.insert(all.end(), bytes.begin(), bytes.end());
    producer->Send(Bytes(bytes));
    network_.RunFor(1000);
    EXPECT_EQ(sink->bytes, all) << "layer " << layer;
    EXPECT_FALSE(sink->ended());
  }
  producer->Finish();
  network_.Settle();
  EXPECT_TRUE(sink->ok());
  ExpectNothingLeft();
}

TEST_F(Streams, ASlowReaderHoldsItsSenderBackAndNobodyElse) {
  ConnectionLimits limits;
  limits.max_frame_bytes = 16 << 10;
  limits.window_bytes = 64 << 10;
  limits.send_buffer_bytes = 32 << 10;
  Start(limits);
  size_t sent = 0;
  size_t full = 0;
  handler_.on_stream = [&](const IncomingStream& incoming, const auto& sink) {
    if (incoming.method == 2) {
      incoming.stream->Send(Bytes(BytesOf(2, 1000), true));
      return;
    }
    // As much as is taken, whenever there is room.
    sink->on_writable = [&, stream = incoming.stream] {
      while (sent < 1'000'000) {
        const SendResult result =
            stream->Send(Bytes(BytesOf(sent, 10'000), sent + 10'000 == 1'000'000));
        if (result != SendResult::kTaken) {
          full += result == SendResult::kFull ? 1 : 0;
          return;
        }
        sent += 10'000;
      }
    };
    sink->on_writable();
  };
  const auto slow = Open({.method = 1});
  slow->hold = true;
  network_.Settle();
  EXPECT_GT(full, 0U);
  EXPECT_LE(sent, limits.window_bytes + limits.send_buffer_bytes + 20'000);
  EXPECT_LE(slow->bytes.size(), limits.window_bytes);
  EXPECT_GE(slow->bytes.size(), limits.window_bytes / 2);
  // Another stream of the same connection is not concerned.
  const auto other = Open({.method = 2});
  network_.Settle();
  EXPECT_TRUE(other->ok());
  // The reader goes on, and so does the sender.
  while (!slow->ended()) {
    ASSERT_FALSE(slow->held.empty()) << "stuck at " << slow->bytes.size();
    slow->held.clear();
    network_.Settle();
  }
  EXPECT_TRUE(slow->ok());
  EXPECT_EQ(slow->bytes.size(), 1'000'000U);
  slow->held.clear();
  ExpectNothingLeft();
}

TEST_F(Streams, SmallMessagesDoNotEscapeTheWindow) {
  ConnectionLimits limits;
  limits.max_frame_bytes = 4096;
  limits.window_bytes = 16 << 10;
  limits.send_buffer_bytes = 1 << 20;
  Start(limits);
  handler_.on_stream = [](const IncomingStream& incoming, const auto&) {
    for (int i = 0; i < 10'000; ++i) {
      incoming.stream->Send(Bytes({std::byte{1}}));
    }
    incoming.stream->Finish();
  };
  const auto sink = Open();
  sink->hold = true;
  network_.Settle();
  EXPECT_LE(sink->held.size(), limits.window_bytes / kFrameHeaderBytes);
  while (!sink->ended()) {
    ASSERT_FALSE(sink->held.empty());
    sink->held.clear();
    network_.Settle();
  }
  EXPECT_EQ(sink->messages, 10'000U);
  sink->held.clear();
  ExpectNothingLeft();
}

TEST_F(Streams, UrgentStreamsGoFirst) {
  ConnectionLimits limits;
  limits.window_bytes = 64 << 20;
  limits.send_buffer_bytes = 64 << 20;
  auto far = std::make_shared<Faults>();
  Start(limits, nullptr, far);
  handler_.on_stream = [](const IncomingStream& incoming, const auto&) {
    incoming.stream->Send(Bytes(BytesOf(0, incoming.method == 1 ? 20'000'000 : 1000), true));
  };
  far->largest_write = 0;  // the server reads, and cannot write yet
  const auto bulk = Open({.method = 1, .priority = 200});
  const auto urgent = Open({.method = 2, .priority = 10});
  network_.Settle();
  far->largest_write = 64 << 10;
  size_t bulk_before = 0;
  urgent->on_message = [&](const Message&) { bulk_before = bulk->bytes.size(); };
  connection_->Drain("so that there is something to do");
  const auto another = Open({.method = 3});
  network_.RunFor(10 * kSecond, [&] { return bulk->ended() && urgent->ended(); });
  EXPECT_TRUE(urgent->ok());
  EXPECT_TRUE(bulk->ok());
  // What was made frames already, and no more.
  EXPECT_LE(bulk_before, size_t{1} << 20);
}

TEST_F(Streams, EqualStreamsTakeTurns) {
  Start();
  handler_.on_stream = [](const IncomingStream& incoming, const auto&) {
    incoming.stream->Send(Bytes(BytesOf(0, 3'000'000), true));
  };
  const auto a = Open();
  const auto b = Open();
  size_t b_at_the_end_of_a = 0;
  network_.RunFor(kSecond, [&] {
    if (a->ended() && b_at_the_end_of_a == 0) {
      b_at_the_end_of_a = b->bytes.size();
    }
    return a->ended() && b->ended();
  });
  EXPECT_TRUE(a->ok() && b->ok());
  EXPECT_GE(b_at_the_end_of_a, 2'000'000U);
}

TEST_F(Streams, MoreThanThePeerTakesWait) {
  ConnectionLimits limits;
  limits.max_streams = 3;
  Start(limits);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 10; ++i) {
    sinks.push_back(Open());
  }
  network_.Settle();
  EXPECT_EQ(handler_.sinks.size(), 3U);
  sinks[5]->stream->Cancel(Err(ErrorCode::kUnavailable, "not needed"));  // while it waits
  for (size_t i = 0; i < 9; ++i) {
    ASSERT_GT(handler_.sinks.size(), i);
    handler_.sinks[i]->stream->Finish();
    network_.Settle();
  }
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(sinks[i]->ended()) << i;
    EXPECT_EQ(sinks[i]->ok(), i != 5) << i;
  }
  ExpectNothingLeft();
}

TEST_F(Streams, DeadlinesEndBothSides) {
  Start();
  const auto sink = Open({.deadline_us = network_.clock().NowMicros() + kSecond / 2});
  network_.Settle();
  EXPECT_EQ(handler_.deadlines_us.at(0), network_.clock().NowMicros() + kSecond / 2);
  network_.RunFor(kSecond / 2 - 1);
  EXPECT_FALSE(sink->ended());
  network_.RunFor(2);
  ASSERT_TRUE(sink->ended());
  EXPECT_EQ(sink->code(), ErrorCode::kTimeout);
  ASSERT_TRUE(handler_.sinks.at(0)->ended());
  EXPECT_EQ(handler_.sinks.at(0)->code(), ErrorCode::kTimeout);
  EXPECT_TRUE(connection_->alive());
  ExpectNothingLeft();
}

TEST_F(Streams, ADeadlineThatHasPassedNeedsNoPeer) {
  Start();
  const auto sink = Open({.deadline_us = network_.clock().NowMicros() - 1});
  network_.RunFor(10);
  ASSERT_TRUE(sink->ended());
  EXPECT_EQ(sink->code(), ErrorCode::kTimeout);
  ExpectNothingLeft();
}

TEST_F(Streams, EitherSideCancels) {
  Start();
  const auto mine = Open();
  const auto theirs = Open();
  network_.Settle();
  mine->stream->Cancel(Err(ErrorCode::kExhausted, "enough"));
  handler_.sinks.at(1)->stream->Cancel(Err(ErrorCode::kNotFound, "no more"));
  network_.Settle();
  EXPECT_EQ(mine->code(), ErrorCode::kExhausted);
  EXPECT_EQ(handler_.sinks.at(0)->code(), ErrorCode::kExhausted);
  EXPECT_EQ(handler_.sinks.at(0)->outcome->error().message, "enough");
  EXPECT_EQ(theirs->code(), ErrorCode::kNotFound);
  EXPECT_EQ(handler_.sinks.at(1)->code(), ErrorCode::kNotFound);
  EXPECT_EQ(connection_->stats().streams_failed, 2U);
  ExpectNothingLeft();
}

TEST_F(Streams, AHandlerRefuses) {
  Start();
  handler_.refuse = Err(ErrorCode::kUnsupported, "not this");
  const auto sink = Open();
  network_.Settle();
  ASSERT_TRUE(sink->ended());
  EXPECT_EQ(sink->code(), ErrorCode::kUnsupported);
  EXPECT_EQ(sink->outcome->error().message, "not this");
  ExpectNothingLeft();
}

TEST_F(Streams, ADrainingPeerTakesNoNewOnes) {
  Start();
  const auto before = Open();
  network_.Settle();
  handler_.connections.at(0)->Drain("shutting down");
  network_.Settle();
  const auto after = Open();
  network_.Settle();
  ASSERT_TRUE(after->ended());
  EXPECT_EQ(after->code(), ErrorCode::kUnavailable);
  EXPECT_NE(after->outcome->error().message.find("shutting down"), std::string::npos);
  EXPECT_FALSE(before->ended());
  handler_.sinks.at(0)->stream->Finish();
  network_.Settle();
  EXPECT_TRUE(before->ok());
}

TEST_F(Streams, ARequestThatIsTooLarge) {
  Start();
  const auto sink = Open({}, BytesOf(1, (256 << 10) + 1));
  network_.Settle();
  ASSERT_TRUE(sink->ended());
  EXPECT_EQ(sink->code(), ErrorCode::kInvalidInput);
  EXPECT_TRUE(connection_->alive());
}

TEST_F(Streams, AnIdleConnectionLives) {
  Start();
  network_.RunFor(100 * kSecond);
  EXPECT_TRUE(connection_->alive());
  EXPECT_GT(connection_->stats().sent_bytes, 100U * kFrameHeaderBytes);  // heartbeats
}

TEST_F(Streams, AFrozenPeerIsGoneAfterItsTimeout) {
  auto near = std::make_shared<Faults>();
  Start({}, near);
  const auto sink = Open();
  network_.Settle();
  near->frozen = true;
  network_.RunFor(4 * kSecond);
  EXPECT_TRUE(connection_->alive());
  network_.RunFor(2 * kSecond);
  ASSERT_TRUE(sink->ended());
  EXPECT_EQ(sink->code(), ErrorCode::kTimeout);
  EXPECT_FALSE(connection_->alive());
  // And the other side notices as well, on its own.
  ASSERT_TRUE(handler_.sinks.at(0)->ended());
  EXPECT_TRUE(handler_.connections.empty());
  ExpectNothingLeft();
}

TEST_F(Streams, ClosingEndsEverythingAndSaysWhy) {
  Start();
  const auto sink = Open();
  network_.Settle();
  connection_->Close(Err(ErrorCode::kUnavailable, "going home"));
  network_.Settle();
  EXPECT_EQ(sink->code(), ErrorCode::kUnavailable);
  EXPECT_NE(handler_.sinks.at(0)->outcome->error().message.find("going home"), std::string::npos);
  EXPECT_FALSE(connection_->alive());
  EXPECT_TRUE(handler_.connections.empty());
  // What is opened now ends at once.
  const auto late = Open();
  EXPECT_EQ(late->code(), ErrorCode::kUnavailable);
  ExpectNothingLeft();
}

TEST_F(Streams, AMessageOutlivesItsConnection) {
  Start();
  Answer(handler_, 300'000);
  const auto sink = Open();
  sink->hold = true;
  network_.Settle();
  const std::vector<Message> held = std::move(sink->held);
  network_.Close();
  std::vector<std::byte> bytes;
  for (const Message& message : held) {
    bytes.insert(bytes.end(), message.bytes.span().begin(), message.bytes.span().end());
  }
  EXPECT_EQ(bytes, BytesOf(1, 300'000));
}

// Whatever bit is wrong, what was received before is right, and somebody notices.
TEST_F(Streams, NoFlippedBitGetsThrough) {
  const auto answer = BytesOf(1, 3000);
  size_t unnoticed = 0;
  for (size_t offset = 0; offset < 3600; offset += 7) {
    RecordingHandler handler;
    ManualNetwork network;
    Endpoint& client = network.Add({}, nullptr);
    Endpoint& server = network.Add({}, &handler);
    Answer(handler, 3000);
    auto faults = std::make_shared<Faults>();
    faults->flip_at = offset;
    faults->flip_bit = static_cast<unsigned>(offset % 8);
    const auto connection = network.Connect(client, server, Through(faults));
    if (!connection) {
      EXPECT_TRUE(connection.error().code == ErrorCode::kCorrupt ||
                  connection.error().code == ErrorCode::kUnsupported)
          << connection.error().message;
      continue;
    }
    auto sink = std::make_shared<RecordingSink>();
    (*connection)->Open({}, {}, sink);
    network.RunFor(kSecond / 2);
    ASSERT_TRUE(sink->ended()) << offset;
    ASSERT_LE(sink->bytes.size(), answer.size());
    EXPECT_TRUE(std::equal(sink->bytes.begin(), sink->bytes.end(), answer.begin())) << offset;
    if (sink->ok()) {
      EXPECT_EQ(sink->bytes, answer);
      ++unnoticed;  // the bit comes after the answer
    } else {
      // kUnavailable: the connection was given up before the stream was opened.
      EXPECT_TRUE(sink->code() == ErrorCode::kCorrupt || sink->code() == ErrorCode::kUnsupported ||
                  (sink->code() == ErrorCode::kUnavailable && sink->messages == 0))
          << sink->outcome->error().message;
    }
    EXPECT_EQ(client.live_buffers(), 0U);
  }
  EXPECT_LT(unnoticed, 80U);
}

// Wherever the connection ends, breaks or stops, every stream hears of it and nothing is left.
TEST_F(Streams, WhereverItEnds) {
  const auto answer = BytesOf(1, 3000);
  for (int kind = 0; kind < 3; ++kind) {
    for (size_t offset = 0; offset < 3400; offset += 61) {
      RecordingHandler handler;
      ManualNetwork network;
      Endpoint& client = network.Add({}, nullptr);
      Endpoint& server = network.Add({}, &handler);
      Answer(handler, 3000);
      auto faults = std::make_shared<Faults>();
      (kind == 0 ? faults->end_at : kind == 1 ? faults->reset_at : faults->freeze_at) = offset;
      const auto connection = network.Connect(client, server, Through(faults));
      const ErrorCode expected = kind == 2 ? ErrorCode::kTimeout : ErrorCode::kUnavailable;
      if (!connection) {
        EXPECT_EQ(connection.error().code, expected) << connection.error().message;
        continue;
      }
      auto sink = std::make_shared<RecordingSink>();
      (*connection)->Open({}, {}, sink);
      network.RunFor(10 * kSecond);
      ASSERT_TRUE(sink->ended());
      if (!sink->ok()) {
        EXPECT_EQ(sink->code(), expected) << kind << " " << offset;
      }
      EXPECT_TRUE(std::equal(sink->bytes.begin(), sink->bytes.end(), answer.begin()));
      EXPECT_FALSE((*connection)->alive());
      EXPECT_TRUE(handler.connections.empty());
      EXPECT_EQ(client.live_buffers() + server.live_buffers(), 0U);
    }
  }
}

// Streams and connections that end at any time in any way: in the end nothing is open, no buffer is
// alive, and every sink heard of its end once (which RecordingSink checks).
TEST_F(Streams, TwoHundredRandomAbortsLeaveNothing) {
  const uint64_t seed = 20260;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  ConnectionLimits limits;
  limits.max_frame_bytes = 8 << 10;
  limits.window_bytes = 32 << 10;
  limits.send_buffer_bytes = 64 << 10;
  limits.max_streams = 8;
  EndpointOptions options;
  options.limits = limits;
  client_ = &network_.Add(options, nullptr);
  server_ = &network_.Add(options, &handler_);
  handler_.on_stream = [&rng](const IncomingStream& incoming, const auto& sink) {
    sink->hold = rng.Below(4) == 0;
    incoming.stream->Send(Bytes(BytesOf(1, rng.Below(200'000)), rng.Below(2) == 0));
  };
  std::vector<std::shared_ptr<RecordingSink>> all;
  size_t aborts = 0;
  while (aborts < 200) {
    auto faults = std::make_shared<Faults>();
    faults->largest_read = 1 + rng.Below(20'000);
    auto connection = network_.Connect(*client_, *server_, Through(faults));
    ASSERT_TRUE(connection) << connection.error().message;
    connection_ = *connection;
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (int step = 0; step < 60; ++step) {
      const uint64_t action = rng.Below(10);
      if (action < 4 || sinks.empty()) {
        OpenOptions open;
        open.request_only = rng.Below(2) == 0;
        open.priority = static_cast<uint8_t>(rng.Below(3));
        if (rng.Below(4) == 0) {
          open.deadline_us = network_.clock().NowMicros() + rng.Range(0, 5000);
        }
        auto sink = Open(open, BytesOf(1, rng.Below(4000)));
        sink->hold = rng.Below(3) == 0;
        if (!open.request_only) {
          sink->stream->Send(Bytes(BytesOf(2, rng.Below(100'000)), rng.Below(2) == 0));
        }
        sinks.push_back(sink);
      } else if (action < 6) {
        const auto& sink = sinks[rng.Below(sinks.size())];
        if (sink->stream != nullptr) {
          sink->stream->Cancel(Err(ErrorCode::kUnavailable, "aborted"));
          ++aborts;
        }
      } else if (action < 7 && !handler_.sinks.empty()) {
        const auto& sink = handler_.sinks[rng.Below(handler_.sinks.size())];
        if (sink->stream != nullptr) {
          sink->stream->Cancel(Err(ErrorCode::kExhausted, "aborted there"));
          ++aborts;
        }
      } else if (action < 8) {
        sinks[rng.Below(sinks.size())]->held.clear();
      } else {
        network_.RunFor(rng.Range(0, 3000));
      }
    }
    switch (rng.Below(4)) {
      case 0:
        connection_->Close(Err(ErrorCode::kUnavailable, "closed"));
        break;
      case 1:
        faults->reset_at = 0;
        break;
      case 2:
        faults->frozen = true;
        break;
      default:
        handler_.connections.back()->Close(Err(ErrorCode::kUnavailable, "closed there"));
    }
    ++aborts;
    network_.RunFor(20 * kSecond);
    for (const auto& sink : sinks) {
      EXPECT_TRUE(sink->ended());
      sink->held.clear();
    }
    for (const auto& sink : handler_.sinks) {
      EXPECT_TRUE(sink->ended());
      sink->held.clear();
    }
    EXPECT_TRUE(handler_.connections.empty());
    handler_.sinks.clear();
    ExpectNothingLeft();
  }
}

}  // namespace
}  // namespace kvik::transfer
