// SPDX-License-Identifier: Apache-2.0
#include "store/redis_tier.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/rng.h"
#include "store/testing/made_objects.h"
#include "store/testing/redis_server.h"

namespace kvik::store {
namespace {

using testing::GetOne;
using testing::Has;
using testing::IsIntact;
using testing::kChunkBlocks;
using testing::KeyOf;
using testing::MadeRequest;
using testing::ObjectOf;
using testing::PutOne;
using testing::QueryOf;
using testing::RedisCli;
using testing::RedisCluster;
using testing::RedisServer;

constexpr size_t kObject = 3000;

std::unique_ptr<RedisTier> TierAt(const std::string& url, const Clock& clock) {
  RedisTierOptions options;
  options.redis.url = url;
  options.redis.connect_timeout_us = 500'000;
  options.redis.call_timeout_us = 2'000'000;
  options.redis.min_backoff_us = 1'000;
  options.redis.max_backoff_us = 20'000;
  return RedisTier::Create(options, clock).value();
}

// Tests of this fixture need redis-server (Debian: redis-server); without it they are skipped.
class RedisTierTest : public ::testing::Test {
 protected:
  void SetUp() override {
    static const bool available = RedisServer::Available();
    if (!available) {
      GTEST_SKIP() << "redis-server is not installed";
    }
  }
  SystemClock clock_;
};

TEST(RedisClient, SlotsAreThoseOfTheSpecification) {
  EXPECT_EQ(RedisSlot("123456789"), 0x31C3 % 16384);
  EXPECT_EQ(RedisSlot("foo"), 12182);
  EXPECT_EQ(RedisSlot("{user1000}.following"), RedisSlot("{user1000}.followers"));
  EXPECT_EQ(RedisSlot("foo{}{bar}"), RedisSlot("foo{}{bar}"));
  EXPECT_NE(RedisSlot("foo{}{bar}"), RedisSlot("bar"));
  EXPECT_EQ(RedisSlot("foo{{bar}}zap"), RedisSlot("{bar"));
  EXPECT_EQ(RedisSlot("foo{bar}{zap}"), RedisSlot("bar"));
}

TEST(RedisClient, UrlsAreChecked) {
  ManualClock clock;
  for (const char* url :
       {"redis://a:1", "redis://u:p@a:1,b:2/3", "unix:///tmp/s", "redis://[::1]:7"}) {
    EXPECT_TRUE(RedisClient::Create({.url = url}, clock)) << url;
  }
  for (const char* url :
       {"", "redis://", "redis://a", "redis://a:0", "redis://a:70000", "redis://a:1/x",
        "redis://a:1,", "unix://x", "http://a:1", "redis://u@a:1"}) {
    EXPECT_FALSE(RedisClient::Create({.url = url}, clock)) << url;
  }
}

TEST_F(RedisTierTest, KeepsObjectsForManyMachines) {
  RedisServer server;
  const auto writer = TierAt(server.url(), clock_);
  const auto reader = TierAt("unix://" + server.socket(), clock_);
  std::vector<Object> objects;
  for (const int chunk : {0, 1, 3}) {
    objects.push_back(ObjectOf({.chunk = chunk}, kObject));
  }
  objects.push_back(
      ObjectOf({.chunk = 1, .profile = 9, .quality = {kv::Fidelity::kLossy, 0.5F}}, 0));
  for (const auto& put : writer->Put(objects, kNoDeadline)) {
    EXPECT_TRUE(put);
  }
  for (const auto& put : writer->Put(objects, kNoDeadline)) {
    EXPECT_TRUE(put);
  }
  EXPECT_EQ(writer->stats().puts, 4);
  EXPECT_EQ(writer->stats().duplicates, 4);
  const auto request = MadeRequest(1, 5 * kChunkBlocks);
  const auto found = reader->Lookup(QueryOf(request), kNoDeadline).value();
  ASSERT_EQ(found.size(), 4U);
  EXPECT_EQ(found[0].last_block, kChunkBlocks - 1);
  EXPECT_EQ(found[0].info.size_bytes, kObject);
  EXPECT_EQ(found[3].last_block, 4 * kChunkBlocks - 1);
  EXPECT_TRUE(reader->Lookup(QueryOf(request, {}, 8), kNoDeadline)->empty());
  std::vector<ObjectKey> keys;
  for (const FoundObject& object : found) {
    keys.push_back(object.info.key);
  }
  keys.push_back(KeyOf({.chunk = 2}));
  const auto got = reader->Get(keys, kNoDeadline);
  for (size_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(got[i]);
    EXPECT_TRUE(IsIntact(keys[i], got[i]->bytes.bytes()));
    EXPECT_EQ(got[i]->meta->key, keys[i]);
  }
  EXPECT_EQ(got[4].error().code, ErrorCode::kNotFound);
  EXPECT_EQ(reader->Remove({keys.data(), 2}, kNoDeadline).value(), 2);
  EXPECT_FALSE(Has(*writer, keys[0]));
  EXPECT_EQ(writer->Lookup(QueryOf(request), kNoDeadline)->size(), 2U);
}

TEST_F(RedisTierTest, RemovesByTenantDomainAndPrefix) {
  RedisServer server;
  const auto tier = TierAt(server.url(), clock_);
  const TenantId acme = TenantId::FromName("acme");
  for (int chunk = 0; chunk < 20; ++chunk) {
    ASSERT_TRUE(PutOne(*tier, ObjectOf({.chunk = chunk}, 100)));
    ASSERT_TRUE(PutOne(*tier, ObjectOf({.chunk = chunk, .tenant = acme}, 100)));
    ASSERT_TRUE(PutOne(*tier, ObjectOf({.chunk = chunk, .domain = 2}, 100)));
  }
  RedisCli({"-p", std::to_string(server.port()), "set", "foreign", "x"});
  RemoveFilter filter;
  filter.tenant = acme;
  EXPECT_EQ(tier->RemoveMatching(filter, kNoDeadline).value(), 20);
  filter = {};
  filter.domain = testing::MadeDomain(2);
  EXPECT_EQ(tier->RemoveMatching(filter, kNoDeadline).value(), 20);
  filter = {};
  filter.prefix = testing::MadeHash(1, 15 * kChunkBlocks);
  EXPECT_EQ(tier->RemoveMatching(filter, kNoDeadline).value(), 5);
  EXPECT_EQ(tier->RemoveMatching({}, kNoDeadline).value(), 15);
  EXPECT_NE(RedisCli({"-p", std::to_string(server.port()), "keys", "*"}).find("foreign"),
            std::string::npos);
}

TEST_F(RedisTierTest, DamageIsAMissAndIsCleanedUp) {
  RedisServer server;
  const auto tier = TierAt(server.url(), clock_);
  const std::string port = std::to_string(server.port());
  ASSERT_TRUE(PutOne(*tier, ObjectOf({}, kObject)));
  const std::string keys = RedisCli({"-p", port, "keys", "*:0*"});
  const std::string value = keys.substr(0, keys.find_last_not_of("\r\n") + 1);
  const auto request = MadeRequest(1, kChunkBlocks);
  for (const char* offset : {"0", "4", "9", "40", "100", "2000"}) {
    ASSERT_TRUE(PutOne(*tier, ObjectOf({}, kObject)));
    RedisCli({"-p", port, "setrange", value, offset, "~"});
    const auto got = GetOne(*tier, KeyOf({}));
    ASSERT_FALSE(got);
    if (std::string_view(offset) == "4") {  // the version: not ours to throw away
      EXPECT_EQ(got.error().code, ErrorCode::kUnsupported);
      RedisCli({"-p", port, "del", value});
      EXPECT_FALSE(GetOne(*tier, KeyOf({})));
    } else {
      EXPECT_EQ(got.error().code, ErrorCode::kCorrupt) << offset;
    }
    EXPECT_TRUE(tier->Lookup(QueryOf(request), kNoDeadline)->empty());
  }
  EXPECT_EQ(tier->stats().corrupt, 5);
  // A value that Redis evicted leaves an index entry behind: gone at the first miss.
  ASSERT_TRUE(PutOne(*tier, ObjectOf({}, kObject)));
  RedisCli({"-p", port, "del", value});
  EXPECT_EQ(tier->Lookup(QueryOf(request), kNoDeadline)->size(), 1U);
  EXPECT_FALSE(GetOne(*tier, KeyOf({})));
  EXPECT_TRUE(tier->Lookup(QueryOf(request), kNoDeadline)->empty());
  // Garbage where an index should be.
  RedisCli({"-p", port, "hset", value.substr(0, value.size() - 16) + "i", "x", "y"});
  EXPECT_TRUE(tier->Lookup(QueryOf(request), kNoDeadline)->empty());
  EXPECT_EQ(tier->stats().corrupt, 6);
}

TEST_F(RedisTierTest, AFullServerRefusesAndNothingIsHalfThere) {
  RedisServer server({"--maxmemory", "3mb", "--maxmemory-policy", "noeviction"});
  const auto tier = TierAt(server.url(), clock_);
  int stored = 0;
  for (int chunk = 0; chunk < 20; ++chunk) {
    const auto put = PutOne(*tier, ObjectOf({.chunk = chunk}, 500'000));
    stored += put ? 1 : 0;
    EXPECT_TRUE(put || put.error().code == ErrorCode::kExhausted);
  }
  EXPECT_GT(stored, 0);
  EXPECT_LT(stored, 20);
  const auto request = MadeRequest(1, 20 * kChunkBlocks);
  EXPECT_EQ(static_cast<int>(tier->Lookup(QueryOf(request), kNoDeadline)->size()), stored);
}

TEST_F(RedisTierTest, ADeadServerIsMissesAndComesBack) {
  RedisServer server;
  const auto tier = TierAt(server.url(), clock_);
  ASSERT_TRUE(PutOne(*tier, ObjectOf({}, kObject)));
  server.Kill();
  EXPECT_EQ(GetOne(*tier, KeyOf({})).error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(PutOne(*tier, ObjectOf({}, kObject)).error().code, ErrorCode::kUnavailable);
  const auto request = MadeRequest(1, kChunkBlocks);
  EXPECT_EQ(tier->Lookup(QueryOf(request), kNoDeadline).error().code, ErrorCode::kUnavailable);
  EXPECT_GE(tier->stats().errors, 3);
  server.Start();
  for (int tries = 0; tries < 500 && !PutOne(*tier, ObjectOf({}, kObject)); ++tries) {
    testing::LetServersWork();
  }
  EXPECT_TRUE(IsIntact(KeyOf({}), GetOne(*tier, KeyOf({}))->bytes.bytes()));
}

TEST_F(RedisTierTest, AFrozenServerIsATimeoutAndNoLateAnswerIsMistaken) {
  RedisServer server;
  const auto tier = TierAt(server.url(), clock_);
  ASSERT_TRUE(PutOne(*tier, ObjectOf({.chunk = 0}, kObject)));
  ASSERT_TRUE(PutOne(*tier, ObjectOf({.chunk = 1}, kObject)));
  server.child().Freeze();
  const ObjectKey first = KeyOf({.chunk = 0});
  const auto late = tier->Get({&first, 1}, clock_.NowMicros() + 50'000);
  EXPECT_EQ(late.front().error().code, ErrorCode::kTimeout);
  EXPECT_GE(tier->stats().timeouts, 1);
  server.child().Thaw();
  const ObjectKey second = KeyOf({.chunk = 1});
  Result<Object> got = GetOne(*tier, second);
  for (int tries = 0; tries < 500 && !got; ++tries) {
    testing::LetServersWork();
    got = GetOne(*tier, second);
  }
  ASSERT_TRUE(got);
  EXPECT_TRUE(IsIntact(second, got->bytes.bytes()));
}

TEST_F(RedisTierTest, NobodyThereIsNoErrorAtCreation) {
  const auto tier = TierAt("redis://127.0.0.1:" + std::to_string(testing::FreePort()), clock_);
  EXPECT_EQ(GetOne(*tier, KeyOf({})).error().code, ErrorCode::kUnavailable);
}

TEST_F(RedisTierTest, ManyThreadsShareATier) {
  RedisServer server;
  const auto tier = TierAt(server.url(), clock_);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Rng rng(23, t);
      for (int step = 0; step < 100; ++step) {
        const testing::MadeObject made{.conversation = rng.Below(2),
                                       .chunk = static_cast<int>(rng.Below(6))};
        if (rng.Below(2) == 0) {
          EXPECT_TRUE(PutOne(*tier, ObjectOf(made, kObject)));
        } else if (const auto got = GetOne(*tier, KeyOf(made))) {
          EXPECT_TRUE(IsIntact(KeyOf(made), got->bytes.bytes()));
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(tier->stats().errors, 0);
}

TEST_F(RedisTierTest, AClusterIsSpreadOverAndRedirectionsAreFollowed) {
  RedisCluster cluster(0);
  const auto tier = TierAt(cluster.url(), clock_);
  std::vector<Object> objects;
  std::vector<ObjectKey> keys;
  for (int chunk = 0; chunk < 60; ++chunk) {
    objects.push_back(ObjectOf({.chunk = chunk}, kObject));
    keys.push_back(objects.back().meta->key);
  }
  for (const auto& put : tier->Put(objects, kNoDeadline)) {
    ASSERT_TRUE(put) << put.error().message;
  }
  for (size_t i = 0; i < cluster.size(); ++i) {
    const std::string count = RedisCli({"-p", std::to_string(cluster.node(i).port()), "dbsize"});
    EXPECT_GT(std::stoi(count), 10) << i;
  }
  const auto request = MadeRequest(1, 60 * kChunkBlocks);
  EXPECT_EQ(tier->Lookup(QueryOf(request), kNoDeadline)->size(), 60U);
  // A slot on its way elsewhere: what is not there yet is asked for at the other node (ASK).
  const ObjectKey moving = KeyOf({.conversation = 2});
  std::string tag = "kvik:1:{";
  const auto hex = [&](auto bytes) {
    for (const uint8_t byte : bytes) {
      char digits[3];
      std::snprintf(digits, sizeof digits, "%02x", byte);
      tag += digits;
    }
  };
  hex(moving.block.content.hash.bytes);
  hex(moving.block.content.domain.bytes);
  tag += "00000000000000070000000000000000}:i";
  const std::string slot = std::to_string(RedisSlot(tag));
  std::vector<std::string> ids;
  size_t owner = 0;
  for (size_t i = 0; i < 3; ++i) {
    const std::string port = std::to_string(cluster.node(i).port());
    ids.push_back(RedisCli({"-p", port, "cluster", "myid"}).substr(0, 40));
    if (RedisCli({"-p", port, "get", tag}).find("MOVED") == std::string::npos) {
      owner = i;
    }
  }
  const size_t target = (owner + 1) % 3;
  const std::string from = std::to_string(cluster.node(owner).port());
  const std::string to = std::to_string(cluster.node(target).port());
  RedisCli({"-p", to, "cluster", "setslot", slot, "importing", ids[owner]});
  RedisCli({"-p", from, "cluster", "setslot", slot, "migrating", ids[target]});
  ASSERT_TRUE(PutOne(*tier, ObjectOf({.conversation = 2}, kObject)));
  EXPECT_TRUE(IsIntact(moving, GetOne(*tier, moving)->bytes.bytes()));
  EXPECT_NE(RedisCli({"-p", to, "cluster", "countkeysinslot", slot}).find('2'), std::string::npos);
  // The slot has moved (MOVED), to a client that knows the old map.
  for (const std::string& port : {to, from}) {
    RedisCli({"-p", port, "cluster", "setslot", slot, "node", ids[target]});
  }
  EXPECT_TRUE(IsIntact(moving, GetOne(*tier, moving)->bytes.bytes()));
  EXPECT_EQ(tier->stats().errors, 0);
  EXPECT_EQ(tier->RemoveMatching({}, kNoDeadline).value(), 61);
}

TEST_F(RedisTierTest, AKilledPrimaryIsMissesUntilItsReplicaTakesOver) {
  RedisCluster cluster(1);
  const auto tier = TierAt(cluster.url(), clock_);
  std::vector<Object> objects;
  std::vector<ObjectKey> keys;
  for (int chunk = 0; chunk < 30; ++chunk) {
    objects.push_back(ObjectOf({.chunk = chunk}, kObject));
    keys.push_back(objects.back().meta->key);
  }
  for (const auto& put : tier->Put(objects, kNoDeadline)) {
    ASSERT_TRUE(put) << put.error().message;
  }
  for (size_t i = 0; i < 3; ++i) {  // the replicas have what the primaries have
    RedisCli({"-p", std::to_string(cluster.node(i).port()), "wait", "1", "5000"});
  }
  cluster.node(0).Kill();
  const auto count = [&] {
    int right = 0;
    const auto got = tier->Get(keys, clock_.NowMicros() + 1'000'000);
    for (size_t i = 0; i < keys.size(); ++i) {
      if (got[i]) {
        EXPECT_TRUE(IsIntact(keys[i], got[i]->bytes.bytes()));
        ++right;
      }
    }
    return right;
  };
  const int at_once = count();
  EXPECT_LT(at_once, 30);  // misses, and no more than that
  int right = at_once;
  for (int tries = 0; tries < 1000 && right < 30; ++tries) {
    testing::LetServersWork();
    right = count();
  }
  EXPECT_EQ(right, 30);
  for (const auto& put : tier->Put(objects, kNoDeadline)) {
    EXPECT_TRUE(put);
  }
}

}  // namespace
}  // namespace kvik::store
