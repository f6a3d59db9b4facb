// SPDX-License-Identifier: Apache-2.0
// What a request will likely load comes from the disk to memory while the request waits.
#include <gtest/gtest.h>

#include "base/temporary_folder.h"
#include "connector/connector.h"
#include "connector/testing/toy_objects.h"

namespace kvik::connector {
namespace {

using testing::PutToy;
using testing::ToyEngine;
using testing::ToyKeys;
using testing::ToyObject;
using testing::ToyProfiles;
using testing::ToyPrompt;
using testing::ToyRequestOf;

class Prefetch : public ::testing::Test {
 protected:
  Prefetch() {
    // Four chunks, each lossless and raw, on disk alone.
    {
      const auto store = OpenStore();
      const auto keys = ToyKeys(ToyPrompt(1, 16));
      for (int32_t chunk = 0; chunk < 4; ++chunk) {
        for (const CodecProfile* profile : {&profiles_->lossless(), &profiles_->raw()}) {
          const NewObject object = ToyObject(*profile, keys, {4 * chunk, 4});
          PutToy(*store, object, object.bytes);
        }
      }
      store->Flush();
    }
    store_ = OpenStore();
    ConnectorOptions options;
    options.io_threads = 0;
    options.compute.token_us = 1000;
    options.store_new_kv = false;
    ConnectorParts parts;
    parts.clock = &clock_;
    parts.profiles = profiles_;
    parts.store = store_.get();
    auto made = Connector::Create(std::move(options), std::move(parts));
    KVIK_CHECK(made.has_value(), "%s", made.error().message.c_str());
    connector_ = std::move(made).value();
    engine_ = std::make_unique<ToyEngine>(*connector_, clock_, 64, 1);
  }
  ~Prefetch() override { connector_->Detach(); }

  std::unique_ptr<store::Store> OpenStore() {
    store::StoreOptions options;
    options.background = false;
    options.disk.emplace();
    options.disk->folder = folder_.path();
    options.disk->budget_bytes = uint64_t{64} << 20;
    auto store = store::Store::Open(options, clock_, store::PosixFileSystem());
    KVIK_CHECK(store.has_value(), "%s", store.error().message.c_str());
    return std::move(store).value();
  }
  void Drain() {
    for (int i = 0; i < 1000 && !engine_->idle(); ++i) {
      while (connector_->RunDue()) {
      }
      engine_->Step();
      while (connector_->RunDue()) {
      }
      clock_.Advance(1000);
    }
    EXPECT_TRUE(engine_->idle());
  }

  ManualClock clock_{1'000'000};
  const std::shared_ptr<const ProfileSet> profiles_ = ToyProfiles();
  TemporaryFolder folder_ = TemporaryFolder::Create("kvik-prefetch").value();
  std::unique_ptr<store::Store> store_;
  std::unique_ptr<Connector> connector_;
  std::unique_ptr<ToyEngine> engine_;
};

TEST_F(Prefetch, WhatIsOnDiskIsInMemoryWhenTheRequestIsLetIn) {
  engine_->Submit(ToyRequestOf(ToyPrompt(1, 16)));
  while (connector_->RunDue()) {
  }
  // It stands in the queue: the engine does not step.
  EXPECT_EQ(connector_->counters().prefetched_objects, 4) << "one encoding of each chunk";
  EXPECT_EQ(store_->stats().promotions, 0);
  store_->RunBackground();
  EXPECT_EQ(store_->stats().promotions, 4);
  EXPECT_EQ(store_->stats().tiers[0].hits, 0);
  Drain();
  EXPECT_EQ(engine_->stats.arrived_blocks, 16);
  EXPECT_EQ(store_->stats().tiers[0].hits, 4) << "loads found them in memory";
  EXPECT_EQ(store_->stats().promotions, 4);

  // Nothing is prefetched that is in memory or in the pool already.
  engine_->Submit(ToyRequestOf(ToyPrompt(1, 16)));
  engine_->Evict(100);
  engine_->Submit(ToyRequestOf(ToyPrompt(1, 16)));
  Drain();
  EXPECT_EQ(connector_->counters().prefetched_objects, 4);
}

TEST_F(Prefetch, ARequestThatDoesNotWaitReadsTheDiskItself) {
  engine_->Submit(ToyRequestOf(ToyPrompt(1, 16)));
  Drain();  // the store's background never runs
  EXPECT_EQ(engine_->stats.arrived_blocks, 16);
  EXPECT_EQ(store_->stats().tiers[0].hits, 0);
  store_->RunBackground();  // too late, and harmless
  EXPECT_EQ(store_->stats().promotions, 4);
}

}  // namespace
}  // namespace kvik::connector
