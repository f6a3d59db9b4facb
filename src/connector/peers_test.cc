// SPDX-License-Identifier: Apache-2.0
// Two engines and a pool, each with its connector, over the real protocol on a loopback: KV that is
// handed over is the same bit for bit, and whatever breaks on the way is computed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <thread>

#include "codec/testing/made_kv.h"
#include "connector/connector.h"
#include "connector/testing/toy_engine.h"
#include "store/store.h"
#include "transfer/emulated_link.h"
#include "transfer/link_spec.h"
#include "transfer/loopback.h"
#include "transfer/testing/manual_network.h"

namespace kvik::connector {
namespace {

using testing::kToyNumerics;
using testing::ToyBytes;
using testing::ToyEngine;
using testing::ToyGeometry;
using testing::ToyKeys;
using testing::ToyRequest;
using testing::ToyStats;

class Peers : public ::testing::Test {
 protected:
  struct Node {
    std::unique_ptr<store::Store> store;
    std::unique_ptr<ObjectNode> node;
    std::unique_ptr<transfer::StreamHandler> server;
    transfer::Endpoint* endpoint = nullptr;
    std::unique_ptr<Connector> connector;
    std::unique_ptr<ToyEngine> engine;
  };

  void SetUp() override {
    const kv::KvGeometry geometry = ToyGeometry();
    auto profiles = ProfileSet::Create(
        codec::testing::MadeModel(geometry.num_layers, geometry.num_kv_heads, geometry.head_dim),
        nullptr, /*chunk_tokens=*/64, Isa::kScalar);
    ASSERT_TRUE(profiles.has_value()) << profiles.error().message;
    profiles_ = *profiles;
  }
  void TearDown() override {
    for (auto& [name, node] : nodes_) {
      if (node.connector != nullptr) {
        node.connector->Detach();
      }
    }
    net_.Close();
    for (auto& [name, node] : nodes_) {
      node.connector = nullptr;
    }
  }

  Node& AddNode(const std::string& name, transfer::Role role, bool with_store) {
    Node& node = nodes_[name];
    if (with_store) {
      store::StoreOptions options;
      options.background = false;
      auto store = store::Store::Open(options, net_.clock(), store::PosixFileSystem());
      KVIK_CHECK(store.has_value(), "%s", store.error().message.c_str());
      node.store = std::move(store).value();
    }
    ObjectNodeOptions options;
    options.io_threads = 0;
    node.node = ObjectNode::Create(options, node.store.get(), net_.clock());
    node.server = transfer::MakeObjectServer(*node.node);
    transfer::EndpointOptions endpoint;
    endpoint.hello.role = role;
    endpoint.hello.node_name = name;
    endpoint.link = link_;
    node.endpoint = &net_.Add(endpoint, node.server.get());
    return node;
  }

  Node& AddEngine(const std::string& name, ConnectorOptions options, bool with_store = false,
                  kv::NumericsTag numerics = kToyNumerics) {
    Node& node = AddNode(name, transfer::Role::kServer, with_store);
    options.io_threads = 0;
    options.compute.token_us = 1000;
    ConnectorParts parts;
    parts.clock = &net_.clock();
    parts.profiles = profiles_;
    parts.store = node.store.get();
    parts.endpoint = node.endpoint;
    parts.node = node.node.get();
    parts.dial = [this, &node](const std::string& address, int64_t deadline_us,
                               transfer::Endpoint::Connected done) {
      const auto peer = nodes_.find(address);
      if (peer == nodes_.end()) {
        done(Err(ErrorCode::kUnavailable, "nobody is at %s", address.c_str()));
        return;
      }
      transfer::ConnectLoopback(*node.endpoint, *peer->second.endpoint, deadline_us,
                                std::move(done));
    };
    auto connector = Connector::Create(std::move(options), std::move(parts));
    KVIK_CHECK(connector.has_value(), "%s", connector.error().message.c_str());
    node.connector = std::move(connector).value();
    node.engine = std::make_unique<ToyEngine>(*node.connector, net_.clock(), 256, 1, numerics);
    return node;
  }

  void Settle() {
    for (bool any = true; any;) {
      any = false;
      for (auto& [name, node] : nodes_) {
        any = node.endpoint->Poll() || any;
        while (node.node->RunDue() || (node.connector != nullptr && node.connector->RunDue())) {
          any = true;
        }
      }
    }
  }
  void Tick(int64_t us = 1000) {
    Settle();
    for (auto& [name, node] : nodes_) {
      if (node.engine != nullptr) {
        node.engine->Step();
      }
    }
    Settle();
    net_.clock().Advance(us);
  }
  // Until no engine has anything to do and nobody holds a block.
  void Drain() {
    for (int i = 0; i < 20'000; ++i) {
      Tick();
      bool idle = true;
      for (auto& [name, node] : nodes_) {
        idle =
            idle && (node.engine == nullptr || (node.engine->idle() && node.engine->held() == 0));
      }
      if (idle) {
        return;
      }
    }
    FAIL() << "something never ends";
  }
  void DrainEngine(Node& node) {
    for (int i = 0; i < 20'000 && !node.engine->idle(); ++i) {
      Tick();
    }
    EXPECT_TRUE(node.engine->idle());
  }

  // Half of RequestOf(1, 40) has been computed; the rest goes on a block a step.
  void ComputeHalf(Node& prefill) {
    prefill.engine->compute_blocks_per_step = 1;
    prefill.engine->Submit(RequestOf(1, 40));
    for (int i = 0; i < 20; ++i) {
      Tick();
    }
  }
  static ToyRequest RequestOf(uint64_t id, size_t blocks, const std::string& peer = "",
                              bool for_peer = false) {
    std::vector<uint64_t> choices;
    for (size_t i = 0; i < blocks; ++i) {
      choices.push_back(id * 1000 + i);
    }
    ToyRequest request;
    request.keys = ToyKeys(choices);
    request.num_tokens = static_cast<int32_t>(blocks) * 16 + 5;
    if (!peer.empty() || for_peer) {
      auto transfer = std::make_shared<kv::TransferParams>();
      transfer->peer = peer;
      transfer->for_peer = for_peer;
      request.transfer = std::move(transfer);
    }
    return request;
  }
  static void ExpectSameBits(const ToyEngine& a, const ToyEngine& b, const ToyRequest& request) {
    for (const kv::ContentKey& key : request.keys) {
      ASSERT_TRUE(a.Has(key));
      ASSERT_TRUE(b.Has(key));
      EXPECT_EQ(std::memcmp(a.Bytes(key).data(), b.Bytes(key).data(), a.Bytes(key).size()), 0);
    }
  }

  transfer::testing::ManualNetwork net_;
  std::shared_ptr<const ProfileSet> profiles_;
  std::map<std::string, Node> nodes_;
  std::shared_ptr<transfer::EmulatedLink> link_;  // of nodes that are added from now on
};

TEST_F(Peers, KvIsHandedOverBitForBit) {
  for (const char* profile : {"lossless", "raw", kAdaptive}) {
    SCOPED_TRACE(profile);
    ConnectorOptions options;
    options.kv_profile = profile;
    const std::string p = std::string("prefill-") + profile;
    Node& prefill = AddEngine(p, options);
    Node& decode = AddEngine(std::string("decode-") + profile, options);
    const ToyRequest request = RequestOf(1, 11);
    prefill.engine->Submit(RequestOf(1, 11, "", /*for_peer=*/true));
    DrainEngine(prefill);
    EXPECT_EQ(prefill.engine->held(), 11) << "kept for the peer";
    decode.engine->Submit(RequestOf(1, 11, p));
    DrainEngine(decode);
    EXPECT_EQ(decode.engine->stats.arrived_blocks, 11);
    EXPECT_EQ(decode.engine->stats.computed_blocks, 0);
    ExpectSameBits(*prefill.engine, *decode.engine, request);
    const auto& report = decode.engine->reports.back();
    ASSERT_NE(report, nullptr);
    EXPECT_EQ(report->tier, "peer " + p + " (live)");
    EXPECT_EQ(prefill.connector->counters().served_objects, 3);
    Drain();  // the leases end
    prefill.engine->CheckIdle();
    decode.engine->CheckIdle();
  }
}

TEST_F(Peers, BlocksAreHandedOverWhileTheyAreComputed) {
  ConnectorOptions options;
  options.kv_profile = "lossless";
  Node& prefill = AddEngine("prefill", options);
  Node& decode = AddEngine("decode", options);
  decode.engine->compute_blocks_per_step = 0;
  prefill.engine->compute_blocks_per_step = 1;
  prefill.engine->Submit(RequestOf(1, 24));
  for (int i = 0; i < 5; ++i) {
    Tick();
  }
  EXPECT_LT(prefill.engine->stats.computed_blocks, 10);
  decode.engine->Submit(RequestOf(1, 24, "prefill"));
  DrainEngine(decode);
  EXPECT_EQ(decode.engine->stats.arrived_blocks, 24);
  ExpectSameBits(*prefill.engine, *decode.engine, RequestOf(1, 24));
  Drain();
}

// An engine is busy for the whole of a step. What it has begun is known without it.
TEST_F(Peers, WhatIsPromisedIsSaidAtOnce) {
  Node& prefill = AddEngine("prefill", {});
  Node& decode = AddEngine("decode", {});
  decode.engine->compute_blocks_per_step = 0;
  prefill.engine->compute_blocks_per_step = 1;
  prefill.engine->Submit(RequestOf(1, 24));
  Tick();
  decode.engine->Submit(RequestOf(1, 24, "prefill"));
  for (int i = 0; i < 3; ++i) {  // the prefill node's engine is in a step
    decode.engine->Step();
    Settle();
  }
  EXPECT_EQ(decode.connector->counters().claimed_blocks, 24);
  DrainEngine(decode);
  EXPECT_EQ(decode.engine->stats.arrived_blocks, 24);
  const auto& report = decode.engine->reports.back();
  ASSERT_NE(report, nullptr);
  EXPECT_GT(report->prefill_us, 0);
  EXPECT_LE(report->prefill_us, report->observed_us);
  Drain();
}

// The first chunks are there long before the last ones: they do not wait for those.
TEST_F(Peers, ChunksComeInTheOrderInWhichThePeerComputesThem) {
  ConnectorOptions options;
  options.kv_profile = "lossless";
  options.max_loads_in_flight = 2;
  Node& prefill = AddEngine("prefill", options);
  Node& decode = AddEngine("decode", options);
  decode.engine->compute_blocks_per_step = 0;
  prefill.engine->compute_blocks_per_step = 1;
  prefill.engine->Submit(RequestOf(1, 40));
  Tick();
  decode.engine->Submit(RequestOf(1, 40, "prefill"));
  for (int i = 0; i < 24; ++i) {
    Tick();
  }
  EXPECT_LT(prefill.engine->stats.computed_blocks, 30);
  EXPECT_GE(decode.engine->stats.arrived_blocks, 20);
  DrainEngine(decode);
  EXPECT_EQ(decode.engine->stats.arrived_blocks, 40);
  Drain();
}

// Not for the whole lease: half of the pool would soon be full of prompts that were handed over,
// and the next ones would not be kept.
TEST_F(Peers, WhatAPeerHasFetchedIsNotKeptForIt) {
  Node& prefill = AddEngine("prefill", {});
  Node& decode = AddEngine("decode", {});
  const int64_t begin_us = net_.clock().NowMicros();
  for (int i = 1; i <= 5; ++i) {  // 200 blocks of 256, at most 128 of them kept
    const auto prompt = static_cast<uint64_t>(i);
    prefill.engine->Submit(RequestOf(prompt, 40, "", /*for_peer=*/true));
    DrainEngine(prefill);
    decode.engine->Submit(RequestOf(prompt, 40, "prefill"));
    DrainEngine(decode);
    EXPECT_EQ(decode.engine->stats.arrived_blocks, 40 * i);
    Settle();
    EXPECT_EQ(prefill.engine->held(), 0);
  }
  EXPECT_LT(net_.clock().NowMicros() - begin_us, 10'000'000);
  Drain();
}

// Else the first transfers would be planned for a link that somebody made up, and all of them where
// encoding is slower than the wire.
TEST_F(Peers, ALinkOfWhichNothingIsKnownIsProbed) {
  const auto link = transfer::LinkSpec::Parse("rate=2MB");
  ASSERT_TRUE(link.has_value());
  link_ = std::make_shared<transfer::EmulatedLink>(*link, net_.clock());
  AddEngine("prefill", {});
  link_ = nullptr;
  Node& decode = AddEngine("decode", {});
  decode.engine->Submit(RequestOf(1, 8, "prefill"));  // which has nothing of it
  for (int i = 0; i < 700; ++i) {
    Tick();
  }
  EXPECT_EQ(decode.engine->stats.arrived_blocks, 0);
  ASSERT_EQ(decode.connector->sources().size(), 1U);
  EXPECT_NEAR(decode.connector->sources()[0].goodput_bytes_per_s, 2e6, 2e5);
  Drain();
}

// Nor does a step of somebody else's request turn a promise into nothing.
TEST_F(Peers, APeerThatPromisedIsAskedPatiently) {
  Node& prefill = AddEngine("prefill", {});
  Node& decode = AddEngine("decode", {});
  decode.engine->Submit(RequestOf(1, 8, "prefill"));
  for (int i = 0; i < 10; ++i) {
    decode.engine->Step();
    Settle();
    net_.clock().Advance(100'000);
  }
  prefill.engine->Submit(RequestOf(1, 8, "", /*for_peer=*/true));
  DrainEngine(decode);
  EXPECT_EQ(decode.engine->stats.arrived_blocks, 8);
  EXPECT_EQ(decode.engine->stats.computed_blocks, 0);
  Drain();
}

// Nothing of a chunk can come before its last block is computed: that says nothing about the link.
TEST_F(Peers, AChunkThatThePeerStillComputesIsWaitedFor) {
  ConnectorOptions options;
  options.kv_profile = "kivi-4";  // one chunk for the whole prompt
  Node& prefill = AddEngine("prefill", options);
  Node& decode = AddEngine("decode", options);
  prefill.engine->compute_blocks_per_step = 1;
  ToyRequest computing = RequestOf(1, 24, "", /*for_peer=*/true);
  ToyRequest waiting = RequestOf(1, 24, "prefill");
  computing.quality = waiting.quality = {.allow_lossy = true, .q_min = 0};
  prefill.engine->Submit(computing);
  decode.engine->Submit(waiting);
  for (int i = 0; i < 24; ++i) {
    Tick(60'000);
  }
  DrainEngine(decode);
  EXPECT_EQ(decode.engine->stats.arrived_blocks, 24);
  EXPECT_EQ(decode.engine->stats.computed_blocks, 0);
  EXPECT_EQ(decode.connector->counters().given_up_blocks, 0);
  Drain();
}

TEST_F(Peers, ResidentBlocksThatNobodyKeptAreServedToo) {
  ConnectorOptions options;
  options.kv_profile = "lossless";
  Node& prefill = AddEngine("prefill", options);
  Node& decode = AddEngine("decode", options);
  prefill.engine->Submit(RequestOf(1, 8));
  Drain();
  EXPECT_EQ(prefill.engine->held(), 0);
  decode.engine->Submit(RequestOf(1, 8, "prefill"));
  DrainEngine(decode);
  EXPECT_EQ(decode.engine->stats.arrived_blocks, 8);
  // And back: the decode node has more by now.
  decode.engine->Submit(RequestOf(1, 12));
  DrainEngine(decode);
  Drain();  // leases end, so that the blocks can go
  prefill.engine->Evict(100);
  prefill.engine->Submit(RequestOf(1, 12, "decode"));
  DrainEngine(prefill);
  EXPECT_EQ(prefill.engine->stats.arrived_blocks, 12);
  ExpectSameBits(*prefill.engine, *decode.engine, RequestOf(1, 12));
  Drain();
  prefill.engine->CheckIdle();
  decode.engine->CheckIdle();
}

// Whatever of the prompt is here already is not sent again, wherever chunks begin and end.
TEST_F(Peers, OnlyTheBlocksThatAreLackingAreSent) {
  ConnectorOptions options;
  options.kv_profile = "raw";
  Node& prefill = AddEngine("prefill", options);
  Node& decode = AddEngine("decode", options);
  prefill.engine->Submit(RequestOf(1, 11));
  Drain();
  decode.engine->Submit(RequestOf(1, 6));  // one chunk and a half
  Drain();
  decode.engine->Submit(RequestOf(1, 11, "prefill"));
  DrainEngine(decode);
  EXPECT_EQ(decode.engine->stats.arrived_blocks, 5);
  EXPECT_EQ(decode.connector->counters().loads, 2);
  const size_t block_bytes = ToyGeometry().bytes_per_block();
  EXPECT_EQ(decode.connector->counters().loaded_raw_bytes, 5 * block_bytes);
  EXPECT_LT(decode.connector->counters().loaded_wire_bytes, 6 * block_bytes);
  ExpectSameBits(*prefill.engine, *decode.engine, RequestOf(1, 11));
  Drain();
  // Holes anywhere.
  Rng rng(7);
  for (int round = 0; round < 10; ++round) {
    SCOPED_TRACE(round);
    const size_t holes = 1 + rng.Below(10);
    decode.engine->Evict(holes);
    const ConnectorCounters before = decode.connector->counters();
    decode.engine->stats = {};
    decode.engine->Submit(RequestOf(1, 11, "prefill"));
    DrainEngine(decode);
    EXPECT_EQ(decode.engine->stats.arrived_blocks, static_cast<int64_t>(holes));
    EXPECT_EQ(decode.connector->counters().loaded_raw_bytes - before.loaded_raw_bytes,
              holes * block_bytes);
    ExpectSameBits(*prefill.engine, *decode.engine, RequestOf(1, 11));
    Drain();
  }
  EXPECT_EQ(decode.connector->counters().failed_loads, 0);
}

// The object that is stored under the name has more blocks than are asked for: they are encoded.
TEST_F(Peers, APartOfWhatIsStoredIsEncodedFromLiveBlocks) {
  ConnectorOptions options;
  options.kv_profile = "raw";
  Node& prefill = AddEngine("prefill", options, /*with_store=*/true);
  Node& decode = AddEngine("decode", options);
  prefill.engine->Submit(RequestOf(1, 8));
  Drain();
  EXPECT_EQ(prefill.connector->counters().stored_objects, 2);
  decode.engine->Submit(RequestOf(1, 3));
  Drain();
  decode.engine->Submit(RequestOf(1, 8, "prefill"));
  DrainEngine(decode);
  EXPECT_EQ(decode.engine->stats.arrived_blocks, 5);
  EXPECT_EQ(decode.connector->counters().loaded_raw_bytes, 5 * ToyGeometry().bytes_per_block());
  EXPECT_EQ(decode.connector->counters().failed_loads, 0);
  ExpectSameBits(*prefill.engine, *decode.engine, RequestOf(1, 8));
  Drain();
}

TEST_F(Peers, WhatWasApproximatedOnceIsNotApproximatedAgain) {
  ConnectorOptions options;
  options.kv_profile = "quarot-4";
  Node& prefill = AddEngine("prefill", options);
  Node& decode = AddEngine("decode", options);
  Node& third = AddEngine("third", options);
  const kv::MinQuality any{.allow_lossy = true, .q_min = 0.0F};
  prefill.engine->Submit(RequestOf(1, 8));
  Drain();
  ToyRequest request = RequestOf(1, 8, "prefill");
  request.quality = any;
  decode.engine->Submit(request);
  DrainEngine(decode);
  EXPECT_EQ(decode.engine->stats.lossy_arrived_blocks, 8);
  request = RequestOf(1, 8, "decode");
  request.quality = any;
  third.engine->Submit(request);
  DrainEngine(third);
  EXPECT_EQ(third.engine->stats.arrived_blocks, 0);
  EXPECT_EQ(third.engine->stats.computed_blocks, 8);
  Drain();
}

// A node with a store keeps the original of what it got, for itself and for others.
TEST_F(Peers, WhatWasApproximatedTravelsOnAsItCame) {
  ConnectorOptions options;
  options.kv_profile = "quarot-4";
  Node& prefill = AddEngine("prefill", options);
  Node& decode = AddEngine("decode", options, /*with_store=*/true);
  Node& third = AddEngine("third", options);
  const auto ask = [](const std::string& peer) {
    ToyRequest request = RequestOf(1, 8, peer);
    request.quality = {.allow_lossy = true, .q_min = 0.0F};
    return request;
  };
  prefill.engine->Submit(RequestOf(1, 8));
  Drain();
  decode.engine->Submit(ask("prefill"));
  DrainEngine(decode);
  EXPECT_EQ(decode.engine->stats.lossy_arrived_blocks, 8);
  EXPECT_EQ(decode.connector->counters().kept_originals, 2);
  prefill.endpoint->Close();  // nobody else has it
  third.engine->Submit(ask("decode"));
  DrainEngine(third);
  EXPECT_EQ(third.engine->stats.lossy_arrived_blocks, 8);
  EXPECT_EQ(third.engine->stats.computed_blocks, 0);
  ExpectSameBits(*decode.engine, *third.engine, RequestOf(1, 8));
  Drain();
  decode.engine->Evict(100);
  decode.engine->Submit(ask(""));
  DrainEngine(decode);
  EXPECT_EQ(decode.engine->stats.lossy_arrived_blocks, 16);
  ExpectSameBits(*decode.engine, *third.engine, RequestOf(1, 8));
  EXPECT_EQ(decode.connector->counters().kept_originals, 2) << "its own are not stored again";
  // An exact request sees none of it.
  third.engine->Evict(100);
  third.engine->Submit(RequestOf(1, 8, "decode"));
  DrainEngine(third);
  EXPECT_EQ(third.engine->stats.arrived_blocks, 8);
  EXPECT_EQ(third.engine->stats.computed_blocks, 8);
  Drain();
}

TEST_F(Peers, APoolServesWhatOneNodeStoredToAnother) {
  AddNode("pool", transfer::Role::kPool, /*with_store=*/true);
  ConnectorOptions options;
  options.kv_profile = "lossless";
  options.pools = {"pool"};
  Node& one = AddEngine("one", options);
  Node& two = AddEngine("two", options);
  one.engine->Submit(RequestOf(1, 9));
  Drain();
  for (int i = 0; i < 50; ++i) {
    Tick();
  }
  EXPECT_EQ(one.connector->counters().stored_objects, 3);
  EXPECT_EQ(nodes_["pool"].node->counters().puts, 3);
  two.engine->Submit(RequestOf(1, 9));
  DrainEngine(two);
  EXPECT_EQ(two.engine->stats.arrived_blocks, 9);
  EXPECT_EQ(two.engine->stats.computed_blocks, 0);
  ExpectSameBits(*one.engine, *two.engine, RequestOf(1, 9));
  ASSERT_NE(two.engine->reports.back(), nullptr);
  EXPECT_THAT(two.engine->reports.back()->tier, ::testing::StartsWith("pool pool"));
  Drain();
  // It is known by now: nothing is stored twice.
  EXPECT_EQ(nodes_["pool"].node->counters().puts, 3);
}

TEST_F(Peers, APoolThatIsNotThereIsSaidOnce) {
  ConnectorOptions options;
  options.pools = {"nobody"};
  ::testing::internal::CaptureStderr();
  Node& node = AddEngine("one", options);
  for (int i = 0; i < 3; ++i) {
    node.engine->Submit(RequestOf(i, 9));
    Drain();
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("pool nobody does not work, and is done without: "), std::string::npos)
      << said;
  EXPECT_EQ(said.find("pool nobody"), said.rfind("pool nobody does")) << said;
  EXPECT_EQ(node.engine->stats.computed_blocks, 27);
}

TEST_F(Peers, TheStoreOfAProcessGivesBackWhatItsEngineEvicted) {
  ConnectorOptions options;
  options.store_profiles = {"lossless", "raw"};
  Node& node = AddEngine("server", options, /*with_store=*/true);
  node.engine->Submit(RequestOf(1, 9));
  Drain();
  EXPECT_EQ(node.connector->counters().stored_objects, 6);
  node.engine->Evict(100);
  node.engine->Submit(RequestOf(1, 9));
  Drain();
  EXPECT_EQ(node.engine->stats.arrived_blocks, 9);
  ASSERT_NE(node.engine->reports.back(), nullptr);
  EXPECT_EQ(node.engine->reports.back()->tier, "store (memory)");
  EXPECT_FALSE(node.connector->Decisions(10).empty());
}

TEST_F(Peers, StrangersThatRequestsNameKeepNobodyOut) {
  ConnectorOptions options;
  options.max_peers = 4;
  Node& decode = AddEngine("decode", options);
  for (int i = 0; i < 20; ++i) {  // more than are remembered, each once
    decode.engine->Submit(RequestOf(100 + i, 8, "nobody-" + std::to_string(i)));
    DrainEngine(decode);
    ASSERT_LE(decode.connector->sources().size(), 4U);
  }
  Node& prefill = AddEngine("prefill", {});
  prefill.engine->Submit(RequestOf(1, 8));
  Drain();
  decode.engine->Submit(RequestOf(1, 8, "prefill"));
  DrainEngine(decode);
  EXPECT_EQ(decode.engine->stats.arrived_blocks, 8);
  ExpectSameBits(*prefill.engine, *decode.engine, RequestOf(1, 8));
  Drain();
  decode.engine->CheckIdle();
}

TEST_F(Peers, APeerThatARequestWaitsForIsNotForgotten) {
  ConnectorOptions options;
  options.max_peers = 1;
  Node& prefill = AddEngine("prefill", {});
  Node& decode = AddEngine("decode", options);
  ComputeHalf(prefill);
  decode.engine->Submit(RequestOf(1, 40, "prefill"));
  Tick();
  decode.engine->Submit(RequestOf(2, 8, "nobody"));  // while the first loads: it is computed
  DrainEngine(decode);
  EXPECT_EQ(decode.engine->stats.finished, 2);
  EXPECT_GT(decode.engine->stats.arrived_blocks, 0);
  ASSERT_EQ(decode.connector->sources().size(), 1U);
  EXPECT_EQ(decode.connector->sources().front().name, "peer prefill");
  ExpectSameBits(*prefill.engine, *decode.engine, RequestOf(1, 40));
  Drain();
  decode.engine->CheckIdle();
}

TEST_F(Peers, APeerThatDiesMidwayCostsOnlyTime) {
  ConnectorOptions options;
  options.kv_profile = "lossless";
  Node& prefill = AddEngine("prefill", options);
  Node& decode = AddEngine("decode", options);
  ComputeHalf(prefill);
  decode.engine->Submit(RequestOf(1, 40, "prefill"));
  for (int i = 0; i < 6; ++i) {
    Tick();
  }
  prefill.endpoint->Close();
  DrainEngine(decode);
  EXPECT_EQ(decode.engine->stats.finished, 1);
  EXPECT_EQ(decode.engine->stats.arrived_blocks + decode.engine->stats.computed_blocks, 40);
  EXPECT_GT(decode.engine->stats.computed_blocks, 0);
  decode.engine->CheckIdle();
}

TEST_F(Peers, AClockThatJumpsAheadEndsWhatIsUnderWayAndNothingElse) {
  ConnectorOptions options;
  options.kv_profile = "lossless";
  options.pools = {"pool"};
  AddNode("pool", transfer::Role::kPool, /*with_store=*/true);
  Node& prefill = AddEngine("prefill", options);
  Node& decode = AddEngine("decode", options);
  prefill.engine->compute_blocks_per_step = 1;
  // At any moment of a hand-over: a day passes between two instructions, as for a machine that was
  // suspended.
  int64_t expected_blocks = 0;
  for (uint64_t id = 1; id <= 20; ++id) {
    prefill.engine->Submit(RequestOf(id, 24, "", /*for_peer=*/true));
    decode.engine->Submit(RequestOf(id, 24, "prefill"));
    for (uint64_t i = 0; i < 2 * id; ++i) {
      Tick();
    }
    net_.clock().Advance(int64_t{24} * 3600 * 1'000'000);
    Drain();
    expected_blocks += 24;
    const ToyStats& stats = decode.engine->stats;
    EXPECT_EQ(stats.arrived_blocks + stats.computed_blocks, expected_blocks);
    EXPECT_EQ(decode.connector->counters().loading_blocks, 0);
    EXPECT_EQ(prefill.connector->counters().held_blocks, 0);
    prefill.engine->CheckIdle();
    decode.engine->CheckIdle();
    ExpectSameBits(*prefill.engine, *decode.engine, RequestOf(id, 24));
    prefill.engine->Evict(256);
    decode.engine->Evict(256);
  }
  const int64_t computed_blocks = decode.engine->stats.computed_blocks;
  prefill.engine->Submit(RequestOf(99, 24, "", /*for_peer=*/true));
  DrainEngine(prefill);
  decode.engine->Submit(RequestOf(99, 24, "prefill"));
  DrainEngine(decode);
  EXPECT_EQ(decode.engine->stats.computed_blocks, computed_blocks) << "they talk again";
  Drain();
}

TEST_F(Peers, BlocksThatNobodyComesForAreLetGoAfterTheirLease) {
  Node& prefill = AddEngine("prefill", {});
  prefill.engine->Submit(RequestOf(1, 11, "", /*for_peer=*/true));
  DrainEngine(prefill);
  const int64_t lease_us = LiveCacheOptions().lease_us;
  for (int i = 0; i < 9; ++i) {
    Tick(lease_us / 10);
    EXPECT_EQ(prefill.engine->held(), 11);
  }
  for (int i = 0; i < 3; ++i) {
    Tick(lease_us / 10);
  }
  EXPECT_EQ(prefill.engine->held(), 0);
  EXPECT_EQ(prefill.connector->counters().expired_leases, 11);
  prefill.engine->CheckIdle();
}

TEST_F(Peers, KvOfAnotherArithmeticIsNeitherHandedOverNorFoundInAPool) {
  AddNode("pool", transfer::Role::kPool, /*with_store=*/true);
  ConnectorOptions options;
  options.pools = {"pool"};
  Node& there = AddEngine("there", options, /*with_store=*/false, kv::NumericsTag{0xBEEF});
  Node& here = AddEngine("here", options);
  for (const int id : {1, 2}) {
    there.engine->Submit(RequestOf(id, 8, "", /*for_peer=*/true));
    DrainEngine(there);
  }
  EXPECT_GT(there.connector->counters().stored_objects, 0);
  for (const bool lossy : {false, true}) {
    // Each has a prompt of its own: what this node stored itself it may load.
    ToyRequest request = RequestOf(lossy ? 2 : 1, 8, "there");
    request.quality = {.allow_lossy = lossy, .q_min = 0};
    here.engine->Submit(request);
    DrainEngine(here);
    here.engine->Evict(100);
  }
  EXPECT_EQ(here.engine->stats.arrived_blocks, 0);
  EXPECT_EQ(here.engine->stats.computed_blocks, 16);
  EXPECT_EQ(here.connector->counters().claimed_blocks, 0);
  // Its like finds it.
  Node& like = AddEngine("like", options, /*with_store=*/false, kv::NumericsTag{0xBEEF});
  like.engine->Submit(RequestOf(1, 8));
  DrainEngine(like);
  EXPECT_EQ(like.engine->stats.arrived_blocks, 8);
  Drain();
}

TEST_F(Peers, FailurePolicyFailEndsTheRequest) {
  ConnectorOptions options;
  options.failure_policy = FailurePolicy::kFail;
  Node& decode = AddEngine("decode", options);
  decode.engine->Submit(RequestOf(1, 4, "nobody"));
  Drain();
  EXPECT_EQ(decode.engine->stats.failed, 1);
  // Without a peer that promised anything there is nothing to fail.
  decode.engine->Submit(RequestOf(1, 4));
  Drain();
  EXPECT_EQ(decode.engine->stats.finished, 1);
}

TEST_F(Peers, AbortsOnBothSidesLeaveNothingBehind) {
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    ConnectorOptions options;
    options.kv_profile = "lossless";
    options.live.lease_us = 300'000;
    const std::string p = "prefill" + std::to_string(seed);
    Node& prefill = AddEngine(p, options, /*with_store=*/true);
    Node& decode = AddEngine("decode" + std::to_string(seed), options);
    for (int step = 0; step < 1500; ++step) {
      if (rng.Below(8) == 0 && prefill.engine->open_requests() < 4) {
        const uint64_t id = rng.Below(4);
        const size_t blocks = 1 + rng.Below(16);
        prefill.engine->Submit(RequestOf(id, blocks, "", rng.Below(2) == 0));
        if (rng.Below(3) != 0) {
          decode.engine->Submit(RequestOf(id, blocks, p));
        }
      }
      for (Node* node : {&prefill, &decode}) {
        const auto tickets = node->engine->tickets();
        if (!tickets.empty() && rng.Below(30) == 0) {
          node->engine->Abort(tickets[rng.Below(tickets.size())]);
        }
        if (rng.Below(20) == 0) {
          node->engine->Evict(rng.Below(60));
        }
        if (rng.Below(60) == 0) {
          node->connector->NeedRoom(static_cast<int32_t>(rng.Below(8)));
        }
      }
      Tick(static_cast<int64_t>(rng.Below(4000)));
    }
    Drain();
    prefill.engine->CheckIdle();
    decode.engine->CheckIdle();
    EXPECT_GT(decode.engine->stats.arrived_blocks, 20);
    EXPECT_EQ(prefill.connector->counters().held_blocks, 0);
    EXPECT_EQ(decode.connector->counters().loading_blocks, 0);
  }
}

// The same with threads, sockets and the real clock.
TEST(PeersOverSockets, KvIsHandedOverAndStored) {
  const SystemClock clock;
  const kv::KvGeometry geometry = ToyGeometry();
  auto made = ProfileSet::Create(
      codec::testing::MadeModel(geometry.num_layers, geometry.num_kv_heads, geometry.head_dim),
      nullptr, /*chunk_tokens=*/64, Isa::kScalar);
  ASSERT_TRUE(made.has_value()) << made.error().message;
  struct Node {
    std::unique_ptr<store::Store> store;
    std::unique_ptr<ObjectNode> node;
    std::unique_ptr<transfer::StreamHandler> server;
    std::unique_ptr<transfer::Endpoint> endpoint;
    std::string address;
    std::unique_ptr<Connector> connector;
    std::unique_ptr<ToyEngine> engine;
  };
  Node nodes[3];  // a pool and two engines
  for (Node& node : nodes) {
    const bool pool = &node == &nodes[0];
    if (pool) {
      auto store = store::Store::Open({}, clock, store::PosixFileSystem());
      ASSERT_TRUE(store.has_value()) << store.error().message;
      node.store = std::move(store).value();
    }
    node.node = ObjectNode::Create({}, node.store.get(), clock);
    node.server = transfer::MakeObjectServer(*node.node);
    transfer::EndpointOptions options;
    options.hello.role = pool ? transfer::Role::kPool : transfer::Role::kServer;
    auto endpoint = transfer::Endpoint::Create(options, clock, node.server.get());
    ASSERT_TRUE(endpoint.has_value()) << endpoint.error().message;
    node.endpoint = std::move(endpoint).value();
    auto address = node.endpoint->Listen("127.0.0.1:0");
    ASSERT_TRUE(address.has_value()) << address.error().message;
    node.address = *address;
    if (pool) {
      continue;
    }
    ConnectorOptions connector;
    connector.kv_profile = "lossless";
    connector.pools = {nodes[0].address};
    connector.lookup_patience_us = 20'000'000;
    connector.load_timeout_us = 60'000'000;
    connector.compute.token_us = 1e6;  // loading is worth waiting for
    connector.max_storing_share = 1;
    ConnectorParts parts;
    parts.clock = &clock;
    parts.profiles = *made;
    parts.endpoint = node.endpoint.get();
    parts.node = node.node.get();
    auto created = Connector::Create(connector, parts);
    ASSERT_TRUE(created.has_value()) << created.error().message;
    node.connector = std::move(created).value();
    node.engine = std::make_unique<ToyEngine>(*node.connector, clock, 256, 1);
  }
  Node& one = nodes[1];
  Node& two = nodes[2];
  const auto run = [&] {
    while (!one.engine->idle() || !two.engine->idle()) {
      one.engine->Step();
      two.engine->Step();
      std::this_thread::yield();
    }
  };
  const auto request = [](uint64_t id, const std::string& peer) {
    std::vector<uint64_t> choices;
    for (uint64_t i = 0; i < 21; ++i) {
      choices.push_back(id * 1000 + i);
    }
    ToyRequest out;
    out.keys = ToyKeys(choices);
    out.num_tokens = 21 * 16 + 1;
    auto transfer = std::make_shared<kv::TransferParams>();
    transfer->peer = peer;
    out.transfer = std::move(transfer);
    return out;
  };
  for (uint64_t id = 0; id < 8; ++id) {
    one.engine->Submit(request(id, ""));
  }
  run();
  one.connector->Flush();
  EXPECT_EQ(one.connector->counters().stored_objects, 8 * 6);
  // From the pool and from the live cache at once.
  for (uint64_t id = 0; id < 8; ++id) {
    two.engine->Submit(request(id, one.address));
  }
  run();
  EXPECT_EQ(two.engine->stats.arrived_blocks, 8 * 21);
  EXPECT_EQ(two.connector->counters().failed_loads, 0);
  // From the pool alone.
  two.engine->Evict(1000);
  for (uint64_t id = 0; id < 8; ++id) {
    two.engine->Submit(request(id, ""));
  }
  run();
  EXPECT_EQ(two.engine->stats.arrived_blocks, 2 * 8 * 21);
  for (Node& node : nodes) {
    if (node.connector != nullptr) {
      node.connector->Detach();
    }
  }
  for (Node& node : nodes) {
    node.connector = nullptr;
    node.endpoint->Close();
  }
}

}  // namespace
}  // namespace kvik::connector
