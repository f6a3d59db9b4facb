// SPDX-License-Identifier: Apache-2.0
// The object protocol between two endpoints: over real sockets with their own threads, and over the
// loopback driven by hand with a manual clock.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "transfer/loopback.h"
#include "transfer/object_client.h"
#include "transfer/object_server.h"
#include "transfer/testing/fake_pool.h"
#include "transfer/testing/manual_network.h"

namespace kvik::transfer {
namespace {

using testing::BytesOf;
using testing::FakePool;
using testing::KeyOf;

constexpr int64_t kSecond = 1'000'000;

EndpointOptions Options(Role role) {
  EndpointOptions options;
  options.hello.role = role;
  options.hello.model_fingerprint = 42;
  options.hello.kv_layout = "bf16 layers=2 heads=1 dim=8";
  options.hello.block_size_tokens = 16;
  return options;
}

class CountingGet final : public GetSink {
 public:
  void OnObject(size_t /*index*/, const kv::ObjectInfo& /*info*/) override {}
  void OnBytes(size_t /*index*/, SharedBytes /*bytes*/) override {}
  void OnObjectEnd(size_t /*index*/, const Result<void>& /*outcome*/) override {}
  void OnDone(const Result<void>& /*outcome*/, const StreamStats& /*stats*/) override {
    done.set_value();
  }
  std::promise<void> done;
};

// A pool behind a TCP socket and a client of it.
class TcpPair : public ::testing::Test {
 protected:
  void SetUp() override {
    server_handler_ = MakeObjectServer(pool_);
    auto server = Endpoint::Create(Options(Role::kPool), clock_, server_handler_.get());
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::move(*server);
    auto address = server_->Listen("127.0.0.1:0");
    ASSERT_TRUE(address) << address.error().message;
    address_ = *address;
    auto endpoint = Endpoint::Create(Options(Role::kDecode), clock_, nullptr);
    ASSERT_TRUE(endpoint) << endpoint.error().message;
    endpoint_ = std::move(*endpoint);
    ObjectClient::Options options;
    options.address = "kvik://" + address_;
    client_ = ObjectClient::Create(*endpoint_, options);
  }
  [[nodiscard]] int64_t In(int64_t us) const { return clock_.NowMicros() + us; }

  SystemClock clock_;
  FakePool pool_;
  std::unique_ptr<StreamHandler> server_handler_;
  std::unique_ptr<Endpoint> server_;
  std::string address_;
  std::unique_ptr<Endpoint> endpoint_;
  std::unique_ptr<ObjectClient> client_;
};

TEST_F(TcpPair, PutLookupGetRemove) {
  const std::vector<std::byte> bytes = BytesOf(1, 3'000'001);
  PutRequest put;
  put.info.key = KeyOf(1);
  put.info.num_blocks = 16;
  put.info.size_bytes = bytes.size();
  auto stored = client_->PutWait(put, SharedBytes::Own(bytes), In(20 * kSecond));
  ASSERT_TRUE(stored) << stored.error().message;
  // Again: the pool has it and takes no bytes.
  stored = client_->PutWait(put, SharedBytes::Own(bytes), In(20 * kSecond));
  ASSERT_TRUE(stored) << stored.error().message;

  LookupRequest lookup;
  lookup.domain = KeyOf(1).last_block.content.domain;
  lookup.hashes = {KeyOf(0).last_block.content.hash, KeyOf(1).last_block.content.hash};
  auto found = client_->LookupWait(lookup, In(20 * kSecond));
  ASSERT_TRUE(found) << found.error().message;
  ASSERT_EQ(found->size(), 1U);
  EXPECT_EQ((*found)[0].hash_index, 1U);
  EXPECT_EQ((*found)[0].info.key, KeyOf(1));
  EXPECT_EQ((*found)[0].info.size_bytes, bytes.size());

  auto got = client_->GetWait(KeyOf(1), In(20 * kSecond));
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_EQ(*got, bytes);

  const auto removed =
      client_->RemoveWait(RemoveRequest{{KeyOf(1), KeyOf(2)}, ""}, In(20 * kSecond));
  ASSERT_TRUE(removed);
  EXPECT_EQ(*removed, 1U);
  got = client_->GetWait(KeyOf(1), In(20 * kSecond));
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(client_->stats().connects, 1U);
}

TEST_F(TcpPair, CallsAreAnsweredFailedOrDropped) {
  const SharedBytes large = SharedBytes::Own(BytesOf(5, 200'000));
  auto answer = client_->CallWait(1, large, In(20 * kSecond));
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_TRUE(std::ranges::equal(answer->span(), large.span()));
  answer = client_->CallWait(404, large, In(20 * kSecond));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::kNotFound);
  answer = client_->CallWait(500, large, In(20 * kSecond));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::kInternal);
}

// Threads that put, get, call and cancel as they like, while the server goes away and comes back:
// every call ends, what is got is what was put, and nothing is left.
TEST_F(TcpPair, ManyThreadsAndAServerThatRestarts) {
  constexpr uint64_t kThreads = 3;
  constexpr uint64_t kRounds = 40;
  ObjectClient::Options options;
  options.address = address_;
  options.first_pause_us = 500;
  options.longest_pause_us = 2000;
  client_ = ObjectClient::Create(*endpoint_, options);
  std::atomic<uint64_t> got{0};
  std::atomic<uint64_t> failed{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Rng rng(31, t);
      for (uint64_t round = 0; round < kRounds; ++round) {
        const uint64_t number = 1000 * t + round;
        const auto bytes = BytesOf(number, rng.Below(400'000));
        PutRequest put;
        put.info.key = KeyOf(number);
        put.info.size_bytes = bytes.size();
        const auto stored = client_->PutWait(put, SharedBytes::Own(bytes), In(20 * kSecond));
        if (rng.Below(3) == 0) {
          auto sink = std::make_shared<CountingGet>();
          const auto call = client_->Get(GetRequest{{KeyOf(number)}, ""}, In(20 * kSecond), sink);
          call->Cancel();
          sink->done.get_future().wait();
        }
        const auto back = client_->GetWait(KeyOf(number), In(20 * kSecond));
        if (back) {
          EXPECT_EQ(*back, bytes);
          ++got;
        } else {
          ++failed;
        }
        if (stored && back) {
          continue;
        }
        // Until the server is back.
        while (!client_->CallWait(1, {}, In(20 * kSecond))) {
        }
      }
    });
  }
  for (int restart = 0; restart < 3; ++restart) {
    while (got.load() < 15U * static_cast<uint64_t>(restart + 1)) {
      (void)client_->CallWait(1, {}, In(20 * kSecond));
    }
    server_->Close();
    auto server = Endpoint::Create(Options(Role::kPool), clock_, server_handler_.get());
    ASSERT_TRUE(server);
    server_ = std::move(*server);
    const auto address = server_->Listen(address_);
    ASSERT_TRUE(address) << address.error().message;
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(got + failed, kThreads * kRounds);
  EXPECT_GE(got, kThreads * kRounds / 2);
  client_.reset();
  endpoint_->Close();
  server_->Close();
  EXPECT_EQ(endpoint_->live_buffers() + server_->live_buffers(), 0U);
  EXPECT_EQ(pool_.peers(), 0);
}

TEST_F(TcpPair, NobodyListens) {
  server_->Close();
  const auto got = client_->GetWait(KeyOf(1), In(20 * kSecond));
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, ErrorCode::kUnavailable);
}

TEST_F(TcpPair, AnotherModelIsRefusedWithTheReason) {
  EndpointOptions options = Options(Role::kDecode);
  options.hello.model_fingerprint = 43;
  auto endpoint = Endpoint::Create(options, clock_, nullptr);
  ASSERT_TRUE(endpoint);
  const auto connection = (*endpoint)->Connect(address_, In(20 * kSecond));
  ASSERT_FALSE(connection);
  EXPECT_EQ(connection.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(connection.error().message.find("fingerprint"), std::string::npos)
      << connection.error().message;
}

// ---------------------------------------------------------------- by hand, with a manual clock

class CollectingGet final : public GetSink {
 public:
  explicit CollectingGet(size_t objects)
      : bytes(objects), outcomes(objects), infos(objects), times(objects) {}
  void OnObject(size_t index, const kv::ObjectInfo& info) override {
    EXPECT_FALSE(infos[index]);
    infos[index] = info;
  }
  void OnBytes(size_t index, SharedBytes part) override {
    EXPECT_TRUE(infos[index] && !outcomes[index]);
    bytes[index].insert(bytes[index].end(), part.span().begin(), part.span().end());
  }
  void OnObjectTimes(size_t index, const ObjectTimes& its) override {
    EXPECT_FALSE(outcomes[index]);
    times[index] = its;
  }
  void OnObjectEnd(size_t index, const Result<void>& outcome) override {
    EXPECT_FALSE(outcomes[index]);
    outcomes[index] = outcome;
  }
  void OnDone(const Result<void>& outcome, const StreamStats& end_stats) override {
    EXPECT_FALSE(done);
    for (const auto& object : outcomes) {
      EXPECT_TRUE(object.has_value());
    }
    done = outcome;
    stats = end_stats;
  }
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::optional<Result<void>>> outcomes;
  std::vector<std::optional<kv::ObjectInfo>> infos;
  std::vector<std::optional<ObjectTimes>> times;
  std::optional<Result<void>> done;
  StreamStats stats;
};

class CollectingPut final : public PutSink {
 public:
  void OnAnswer(PutAnswer given, const std::shared_ptr<PutHandle>& put) override {
    answer = given;
    handle = put;
  }
  void OnWritable() override {}
  void OnDone(const Result<void>& outcome, const StreamStats& /*stats*/) override {
    done = outcome;
    handle.reset();
  }
  std::optional<PutAnswer> answer;
  std::shared_ptr<PutHandle> handle;
  std::optional<Result<void>> done;
};

// A producer whose objects are made by the test, layer by layer.
class LiveNode final : public FakePool {
 public:
  class Listener final : public ReplyListener {
   public:
    void OnRoom() override { ++room; }
    void OnEnd(const Result<void>& outcome) override { ended = outcome; }
    int room = 0;
    std::optional<Result<void>> ended;
  };
  void Get(const CallContext& /*context*/, GetRequest /*request*/,
           std::shared_ptr<GetReply> made) override {
    reply = std::move(made);
    listener = std::make_shared<Listener>();
    reply->SetListener(listener);
  }
  std::shared_ptr<GetReply> reply;
  std::shared_ptr<Listener> listener;
};

class ByHand : public ::testing::Test {
 protected:
  void SetUp() override {
    server_handler_ = MakeObjectServer(pool_);
    server_ = &network_.Add(Options(Role::kPrefill), server_handler_.get());
    endpoint_ = &network_.Add(Options(Role::kDecode), nullptr);
    ObjectClient::Options options;
    options.dial = [this](int64_t deadline_us, Endpoint::Connected done) {
      ++dials_;
      if (reachable_) {
        ConnectLoopback(*endpoint_, *server_, deadline_us, std::move(done));
      } else {
        endpoint_->RunAt(
            0, [done = std::move(done)] { done(Err(ErrorCode::kUnavailable, "nobody answers")); });
      }
    };
    client_ = ObjectClient::Create(*endpoint_, options);
  }
  ~ByHand() override {
    client_.reset();
    network_.Close();
    pool_.reply.reset();
    EXPECT_EQ(server_->live_buffers() + endpoint_->live_buffers(), 0U);
  }
  [[nodiscard]] int64_t In(int64_t us) { return network_.clock().NowMicros() + us; }
  static kv::ObjectInfo Info(uint64_t number, uint64_t size_bytes) {
    kv::ObjectInfo info;
    info.key = KeyOf(number);
    info.num_blocks = 16;
    info.size_bytes = size_bytes;
    return info;
  }

  LiveNode pool_;
  std::unique_ptr<StreamHandler> server_handler_;
  testing::ManualNetwork network_;
  Endpoint* server_ = nullptr;
  Endpoint* endpoint_ = nullptr;
  std::unique_ptr<ObjectClient> client_;
  bool reachable_ = true;
  int dials_ = 0;
};

TEST_F(ByHand, ObjectsArriveLayerByLayerWhileTheyAreMade) {
  auto sink = std::make_shared<CollectingGet>(2);
  client_->Get(GetRequest{{KeyOf(1), KeyOf(2)}, ""}, In(10 * kSecond), sink);
  network_.Settle();
  ASSERT_NE(pool_.reply, nullptr);
  // The second object is ready first.
  pool_.reply->Begin(1, Info(2, 100));
  pool_.reply->Append(1, SharedBytes::Own(BytesOf(2, 100)));
  pool_.reply->End(1, {});
  pool_.reply->Begin(0, Info(1, 0));
  std::vector<std::byte> all;
  for (uint64_t layer = 0; layer < 5; ++layer) {
    const auto bytes = BytesOf(layer, 40'000);
    all.insert(all.end(), bytes.begin(), bytes.end());
    pool_.reply->Append(0, SharedBytes::Own(bytes));
    network_.RunFor(2000);
    EXPECT_EQ(sink->bytes[0], all) << layer;
  }
  EXPECT_TRUE(sink->outcomes[1] && sink->outcomes[1]->has_value());
  EXPECT_FALSE(sink->outcomes[0]);
  pool_.reply->End(0, {70'000, 800});
  pool_.reply->Finish();
  network_.Settle();
  ASSERT_TRUE(sink->done);
  EXPECT_TRUE(sink->done->has_value());
  ASSERT_TRUE(sink->times[0]);
  EXPECT_EQ(sink->times[0]->waited_us, 70'000);
  EXPECT_EQ(sink->times[0]->encode_us, 800);
  EXPECT_FALSE(sink->times[1]);  // it was there
  EXPECT_EQ(sink->stats.last_message_us - sink->stats.first_message_us, 10'000);
  ASSERT_TRUE(pool_.listener->ended);
  EXPECT_TRUE(pool_.listener->ended->has_value());
}

TEST_F(ByHand, WhatTheProducerCannotGiveFailsAlone) {
  auto sink = std::make_shared<CollectingGet>(3);
  client_->Get(GetRequest{{KeyOf(1), KeyOf(2), KeyOf(3)}, ""}, In(kSecond), sink);
  network_.Settle();
  pool_.reply->Begin(0, Info(1, 10));
  pool_.reply->Append(0, SharedBytes::Own(BytesOf(1, 10)));
  pool_.reply->Fail(0, Err(ErrorCode::kUnavailable, "evicted while it was sent"));
  pool_.reply->Fail(1, Err(ErrorCode::kNotFound, "not here"));
  pool_.reply->Begin(2, Info(3, 0));
  pool_.reply->End(2, {});
  pool_.reply->Finish();
  network_.Settle();
  ASSERT_TRUE(sink->done && sink->done->has_value());
  EXPECT_EQ(sink->outcomes[0]->error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(sink->outcomes[1]->error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(sink->outcomes[2]->has_value());
}

TEST_F(ByHand, ACancelledGetReachesTheProducer) {
  auto sink = std::make_shared<CollectingGet>(1);
  const auto call = client_->Get(GetRequest{{KeyOf(1)}, ""}, kNever, sink);
  network_.Settle();
  pool_.reply->Begin(0, Info(1, 1000));
  network_.Settle();
  call->Cancel();
  network_.Settle();
  ASSERT_TRUE(sink->done);
  EXPECT_EQ(sink->done->error().code, ErrorCode::kUnavailable);
  ASSERT_TRUE(pool_.listener->ended);
  EXPECT_FALSE(pool_.listener->ended->has_value());
  EXPECT_EQ(pool_.reply->Append(0, SharedBytes::Own(BytesOf(1, 10))), SendResult::kEnded);
  EXPECT_TRUE(pool_.reply->ended());
}

TEST_F(ByHand, AFrozenProducerCostsItsDeadlineAndNoMore) {
  auto sink = std::make_shared<CollectingGet>(1);
  client_->Get(GetRequest{{KeyOf(1)}, ""}, In(kSecond / 4), sink);
  network_.RunFor(kSecond / 4 + 1);
  ASSERT_TRUE(sink->done);
  EXPECT_EQ(sink->done->error().code, ErrorCode::kTimeout);
  EXPECT_EQ(sink->outcomes[0]->error().code, ErrorCode::kTimeout);
  EXPECT_TRUE(client_->stats().connected);
}

TEST_F(ByHand, AProducerThatForgetsACallIsNoticed) {
  auto sink = std::make_shared<CollectingGet>(1);
  client_->Get(GetRequest{{KeyOf(1)}, ""}, kNever, sink);
  network_.Settle();
  pool_.reply.reset();
  network_.Settle();
  ASSERT_TRUE(sink->done);
  EXPECT_EQ(sink->done->error().code, ErrorCode::kInternal);
}

TEST_F(ByHand, CallsAreCancelledBeforeThereIsAConnection) {
  auto sink = std::make_shared<CollectingGet>(1);
  const auto call = client_->Get(GetRequest{{KeyOf(1)}, ""}, kNever, sink);
  call->Cancel();
  network_.Settle();
  ASSERT_TRUE(sink->done);
  EXPECT_EQ(sink->done->error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(pool_.reply, nullptr);
}

TEST_F(ByHand, APeerThatComesBackIsFoundAgain) {
  const auto call = [this] {
    auto outcome = std::make_shared<std::optional<Result<SharedBytes>>>();
    client_->Call(1, {}, In(kSecond), [outcome](Result<SharedBytes> answer) { *outcome = answer; });
    network_.RunFor(2 * kSecond, [&] { return outcome->has_value(); });
    return (*outcome)->has_value();
  };
  EXPECT_TRUE(call());
  // It goes away, and nobody answers for a while: every pause is longer than the one before.
  reachable_ = false;
  server_->Close();
  network_.Settle();
  EXPECT_FALSE(client_->stats().connected);
  dials_ = 0;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(call());
    network_.RunFor(10'000);
  }
  EXPECT_GE(dials_, 5);
  EXPECT_LE(dials_, 12);
  // It is back, at the same address.
  server_ = &network_.Add(Options(Role::kPrefill), server_handler_.get());
  reachable_ = true;
  network_.RunFor(5 * kSecond);
  EXPECT_TRUE(call());
  EXPECT_EQ(client_->stats().connects, 2U);
}

TEST_F(ByHand, APutThatIsNotWhatWasAnnounced) {
  for (const uint64_t announced : {99U, 101U}) {
    auto sink = std::make_shared<CollectingPut>();
    PutRequest put;
    put.info = Info(5, announced);
    client_->Put(put, kNever, sink);
    network_.Settle();
    ASSERT_EQ(sink->answer, PutAnswer::kGo);
    const auto handle = sink->handle;
    handle->Append(SharedBytes::Own(BytesOf(5, 100)));
    handle->Commit();
    network_.Settle();
    ASSERT_TRUE(sink->done);
    EXPECT_FALSE(sink->done->has_value());
    EXPECT_EQ(pool_.size(), 0U);
  }
}

TEST_F(ByHand, APutWithoutCommitLeavesNothing) {
  auto sink = std::make_shared<CollectingPut>();
  PutRequest put;
  put.info = Info(5, 100);
  const auto call = client_->Put(put, kNever, sink);
  network_.Settle();
  call->Append(SharedBytes::Own(BytesOf(5, 100)));
  network_.Settle();
  call->Cancel();
  network_.Settle();
  ASSERT_TRUE(sink->done);
  EXPECT_EQ(pool_.size(), 0U);
}

TEST_F(ByHand, ASizeMayBeABound) {
  auto sink = std::make_shared<CollectingPut>();
  PutRequest put;
  put.info = Info(5, 1000);
  put.size_is_bound = true;
  const auto call = client_->Put(put, kNever, sink);
  network_.Settle();
  call->Append(SharedBytes::Own(BytesOf(5, 100)));
  call->Commit();
  network_.Settle();
  ASSERT_TRUE(sink->done);
  EXPECT_TRUE(sink->done->has_value()) << sink->done->error().message;
  EXPECT_EQ(pool_.size(), 1U);
}

TEST_F(ByHand, NothingIsLeftWhenTheEndpointCloses) {
  auto waiting = std::make_shared<CollectingGet>(1);
  client_->Get(GetRequest{{KeyOf(1)}, ""}, kNever, waiting);
  network_.Settle();
  auto queued = std::make_shared<CollectingGet>(1);
  client_->Get(GetRequest{{KeyOf(1)}, ""}, kNever, queued);
  network_.Close();
  ASSERT_TRUE(waiting->done && queued->done);
  EXPECT_EQ(waiting->done->error().code, ErrorCode::kUnavailable);
  auto late = std::make_shared<CollectingGet>(1);
  client_->Get(GetRequest{{KeyOf(1)}, ""}, kNever, late);
  ASSERT_TRUE(late->done);
  EXPECT_EQ(pool_.peers(), 0);
}

// A peer that answers another question than the one that was asked is not believed.
TEST(ObjectMessages, SurviveTheirEncodingAndNothingElseDoes) {
  kv::ObjectInfo info;
  info.key = KeyOf(3);
  info.num_blocks = 7;
  info.quality = {kv::Fidelity::kLossy, 0.97F};
  info.size_bytes = 12345;
  info.tier = kv::ObjectTier::kDisk;
  info.ready_in_us = 5;
  const Payload bytes = Encode(info);
  const auto decoded = DecodeObjectInfo(bytes);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->key, info.key);
  EXPECT_EQ(decoded->num_blocks, 7);
  EXPECT_EQ(decoded->quality.fidelity, kv::Fidelity::kLossy);
  EXPECT_EQ(decoded->quality.q, 0.97F);
  EXPECT_EQ(decoded->tier, kv::ObjectTier::kDisk);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(DecodeObjectInfo(std::span(bytes).first(size)));
  }
  const Payload end = EncodeObjectEnd(77, {5, 6});
  ASSERT_TRUE(DecodeObjectEnd(end));
  EXPECT_EQ(DecodeObjectEnd(end)->first, 77U);
  EXPECT_EQ(DecodeObjectEnd(end)->second.encode_us, 6);
  EXPECT_FALSE(DecodeObjectEnd(std::span(end).first(end.size() - 1)));
  EXPECT_FALSE(DecodeObjectEnd(EncodeObjectEnd(77, {-1, 0})));
  EXPECT_FALSE(DecodeObjectEnd(EncodeObjectEnd(77, {0, INT64_MAX})));
  LookupRequest request;
  request.hashes.resize(2);
  std::vector<FoundObject> found(1);
  found[0].hash_index = 2;
  EXPECT_FALSE(DecodeFoundObjects(Encode(std::span<const FoundObject>(found)), request));
  found[0].hash_index = 1;
  EXPECT_TRUE(DecodeFoundObjects(Encode(std::span<const FoundObject>(found)), request));
}

}  // namespace
}  // namespace kvik::transfer
