// SPDX-License-Identifier: Apache-2.0
// Sources that give another object than was asked for: intact, of the same model, profile, position
// and length, but of another prompt. Nothing in its frames tells them apart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/temporary_folder.h"
#include "connector/connector.h"
#include "connector/testing/toy_objects.h"
#include "connector/testing/toy_reader.h"
#include "store/redis_tier.h"
#include "store/testing/redis_server.h"
#include "transfer/testing/fake_pool.h"
#include "transfer/testing/manual_network.h"

namespace kvik::connector {
namespace {

using testing::PutToy;
using testing::ToyKeys;
using testing::ToyObject;
using testing::ToyProfiles;
using testing::ToyPrompt;
using testing::ToyRequest;
using testing::ToyRequestOf;

constexpr kv::BlockRange kChunk{0, 4};

class Reader : public testing::ToyReader {
 public:
  using ToyReader::ToyReader;

  // Prompts 1 and 2 stand for each other there, 3 for itself.
  void ExpectNoSwappedObjectIsUsed() {
    for (const uint64_t prompt : {1, 2}) {
      SCOPED_TRACE(prompt);
      const ConnectorCounters before = connector().counters();
      engine().stats = {};
      Run(ToyRequestOf(ToyPrompt(prompt, 4)));  // the engine compares every byte
      EXPECT_EQ(engine().stats.arrived_blocks, 0);
      EXPECT_EQ(engine().stats.computed_blocks, 4);
      const ConnectorCounters after = connector().counters();
      EXPECT_EQ(after.loads - before.loads, 1) << "it was tried";
      EXPECT_EQ(after.damaged_objects - before.damaged_objects, 1);
    }
    engine().stats = {};
    Run(ToyRequestOf(ToyPrompt(3, 4)));
    EXPECT_EQ(engine().stats.arrived_blocks, 4) << "what is not swapped is used";
    // What lied is gone.
    engine().Evict(100);
    const int64_t loads = connector().counters().loads;
    Run(ToyRequestOf(ToyPrompt(1, 4)));
    EXPECT_EQ(connector().counters().loads, loads);
  }
};

class SwappedObjects : public ::testing::Test {
 protected:
  [[nodiscard]] NewObject Object(uint64_t prompt) const {
    return ToyObject(profiles_->raw(), ToyKeys(ToyPrompt(prompt, 4)), kChunk);
  }
  void Fill(store::Store& store) const {
    const NewObject one = Object(1);
    const NewObject two = Object(2);
    const NewObject three = Object(3);
    EXPECT_EQ(one.bytes.size_bytes(), two.bytes.size_bytes()) << "no size tells them apart";
    PutToy(store, one, two.bytes);
    PutToy(store, two, one.bytes);
    PutToy(store, three, three.bytes);
    store.Flush();
  }
  std::unique_ptr<store::Store> OpenStore(store::StoreOptions options,
                                          std::vector<std::unique_ptr<store::Tier>> remote = {}) {
    options.background = false;
    auto store = store::Store::Open(options, clock_, store::PosixFileSystem(), std::move(remote));
    KVIK_CHECK(store.has_value(), "%s", store.error().message.c_str());
    return std::move(store).value();
  }
  void ExpectNoneIsUsedOf(store::Store& store) {
    ConnectorOptions options;
    options.kv_profile = "raw";
    ConnectorParts parts;
    parts.store = &store;
    Reader(options, parts, clock_, profiles_).ExpectNoSwappedObjectIsUsed();
  }

  ManualClock clock_{1'000'000};
  const std::shared_ptr<const ProfileSet> profiles_ = ToyProfiles();
};

TEST_F(SwappedObjects, InMemoryAreAMiss) {
  const auto store = OpenStore({});
  Fill(*store);
  ExpectNoneIsUsedOf(*store);
}

TEST_F(SwappedObjects, OnDiskAreAMiss) {
  const auto folder = TemporaryFolder::Create("kvik-swapped").value();
  store::StoreOptions options;
  options.disk.emplace();
  options.disk->folder = folder.path();
  options.disk->budget_bytes = uint64_t{64} << 20;
  Fill(*OpenStore(options));
  const auto again = OpenStore(options);  // nothing is in memory
  ASSERT_EQ(again->stats().tiers[0].objects, 0);
  ExpectNoneIsUsedOf(*again);
}

TEST_F(SwappedObjects, InRedisAreAMiss) {
  if (!store::testing::RedisServer::Available()) {
    GTEST_SKIP() << "redis-server is not installed";
  }
  store::testing::RedisServer server;
  const auto open = [&] {
    store::RedisTierOptions options;
    options.redis.url = server.url();
    std::vector<std::unique_ptr<store::Tier>> remote;
    auto tier = store::RedisTier::Create(options, clock_);
    KVIK_CHECK(tier.has_value(), "%s", tier.error().message.c_str());
    remote.push_back(std::move(tier).value());
    return OpenStore({}, std::move(remote));
  };
  Fill(*open());
  const auto again = open();
  ExpectNoneIsUsedOf(*again);
}

TEST_F(SwappedObjects, FromAPoolAreAMiss) {
  transfer::testing::ManualNetwork net;
  const auto store = [&] {
    store::StoreOptions options;
    options.background = false;
    auto opened = store::Store::Open(options, net.clock(), store::PosixFileSystem());
    KVIK_CHECK(opened.has_value());
    return std::move(opened).value();
  }();
  Fill(*store);
  ObjectNodeOptions by_hand;
  by_hand.io_threads = 0;
  const auto node = ObjectNode::Create(by_hand, store.get(), net.clock());
  const auto server = transfer::MakeObjectServer(*node);
  transfer::Endpoint& pool = net.Add({}, server.get());
  transfer::Endpoint& mine = net.Add({}, nullptr);
  ConnectorOptions options;
  options.kv_profile = "raw";
  options.pools = {"pool"};
  ConnectorParts parts;
  parts.endpoint = &mine;
  parts.dial = [&](const std::string&, int64_t deadline_us, transfer::Endpoint::Connected done) {
    transfer::ConnectLoopback(mine, pool, deadline_us, std::move(done));
  };
  {
    Reader reader(options, parts, net.clock(), profiles_, [&] {
      const bool polled = mine.Poll();
      return pool.Poll() || node->RunDue() || polled;
    });
    reader.ExpectNoSwappedObjectIsUsed();
  }
  net.Close();
}

// A peer that claims to have the blocks live and streams those of another prompt.
TEST_F(SwappedObjects, FromALivePeerAreAMiss) {
  transfer::testing::ManualNetwork net;
  transfer::testing::FakePool liar;
  for (const auto& [named, sent] : {std::pair{1, 2}, {2, 1}, {3, 3}}) {
    const NewObject object = Object(static_cast<uint64_t>(named));
    kv::ObjectInfo info = object.info;
    const NewObject other = Object(static_cast<uint64_t>(sent));
    const auto bytes = other.bytes.span();
    liar.Store(info, {bytes.begin(), bytes.end()});
    info.key.profile_hash = kAnyProfile;
    info.tier = kv::ObjectTier::kLive;
    liar.Store(info, {});
  }
  const auto server = transfer::MakeObjectServer(liar);
  transfer::Endpoint& peer = net.Add({}, server.get());
  transfer::Endpoint& mine = net.Add({}, nullptr);
  ConnectorOptions options;
  options.kv_profile = "raw";
  ConnectorParts parts;
  parts.endpoint = &mine;
  parts.dial = [&](const std::string&, int64_t deadline_us, transfer::Endpoint::Connected done) {
    transfer::ConnectLoopback(mine, peer, deadline_us, std::move(done));
  };
  {
    Reader reader(options, parts, net.clock(), profiles_, [&] {
      const bool polled = mine.Poll();
      return peer.Poll() || polled;
    });
    auto params = std::make_shared<kv::TransferParams>();
    params->peer = "liar";
    for (const uint64_t prompt : {1, 2, 3}) {
      auto request = ToyRequestOf(ToyPrompt(prompt, 4));
      request.transfer = params;
      reader.engine().stats = {};
      reader.Run(request);
      EXPECT_EQ(reader.engine().stats.arrived_blocks, prompt == 3 ? 4 : 0);
    }
    EXPECT_EQ(reader.connector().counters().damaged_objects, 2);
  }
  net.Close();
}

// The same blocks twice, computed exactly and behind approximated KV: a store that mixes them up
// must not hand the latter to an exact request.
TEST_F(SwappedObjects, KvThatDependsOnApproximationsIsNotTakenForExact) {
  const auto keys = ToyKeys(ToyPrompt(1, 4));
  NewObject tainted = ToyObject(profiles_->raw(), keys, kChunk, {kv::Fidelity::kLossy, 0.96F});
  tainted.info.quality = {};  // as the store says
  const auto store = OpenStore({});
  PutToy(*store, tainted, tainted.bytes);
  ConnectorOptions options;
  options.kv_profile = "raw";
  ConnectorParts parts;
  parts.store = store.get();
  Reader reader(options, parts, clock_, profiles_);
  reader.Run(ToyRequestOf(ToyPrompt(1, 4)));
  EXPECT_EQ(reader.engine().stats.arrived_blocks, 0);
  EXPECT_EQ(reader.connector().counters().refused_quality, 1);
  reader.engine().Evict(100);
  reader.Run(ToyRequestOf(ToyPrompt(1, 4), {.allow_lossy = true, .q_min = 0.9F}));
  EXPECT_EQ(reader.engine().stats.lossy_arrived_blocks, 4);
  EXPECT_FLOAT_EQ(reader.engine().stats.least_q, 0.96F);
}

}  // namespace
}  // namespace kvik::connector
