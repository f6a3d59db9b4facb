// SPDX-License-Identifier: Apache-2.0
// What a request will likely load comes from the disk to memory while the request waits.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>

#include "base/temporary_folder.h"
#include "connector/testing/toy_objects.h"
#include "connector/testing/toy_reader.h"

namespace kvik::connector {
namespace {

using testing::PutToy;
using testing::ToyKeys;
using testing::ToyObject;
using testing::ToyProfiles;
using testing::ToyPrompt;
using testing::ToyReader;
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
    ConnectorParts parts;
    parts.store = store_.get();
    reader_.emplace(ConnectorOptions{}, std::move(parts), clock_, profiles_);
  }

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

  ManualClock clock_{1'000'000};
  const std::shared_ptr<const ProfileSet> profiles_ = ToyProfiles();
  TemporaryFolder folder_ = TemporaryFolder::Create("kvik-prefetch").value();
  std::unique_ptr<store::Store> store_;
  std::optional<ToyReader> reader_;
};

TEST_F(Prefetch, WhatIsOnDiskIsInMemoryWhenTheRequestIsLetIn) {
  reader_->engine().Submit(ToyRequestOf(ToyPrompt(1, 16)));
  reader_->Settle();
  // It stands in the queue: the engine does not step.
  EXPECT_EQ(reader_->connector().counters().prefetched_objects, 4) << "one encoding of each chunk";
  EXPECT_EQ(store_->stats().promotions, 0);
  store_->RunBackground();
  EXPECT_EQ(store_->stats().promotions, 4);
  EXPECT_EQ(store_->stats().tiers[0].hits, 0);
  reader_->Drain();
  EXPECT_EQ(reader_->engine().stats.arrived_blocks, 16);
  EXPECT_EQ(store_->stats().tiers[0].hits, 4) << "loads found them in memory";
  EXPECT_EQ(store_->stats().promotions, 4);

  // Nothing is prefetched that is in memory or in the pool already.
  reader_->engine().Submit(ToyRequestOf(ToyPrompt(1, 16)));
  reader_->engine().Evict(100);
  reader_->engine().Submit(ToyRequestOf(ToyPrompt(1, 16)));
  reader_->Drain();
  EXPECT_EQ(reader_->connector().counters().prefetched_objects, 4);
}

TEST_F(Prefetch, ARequestThatDoesNotWaitReadsTheDiskItself) {
  reader_->Run(ToyRequestOf(ToyPrompt(1, 16)));  // the store's background never runs
  EXPECT_EQ(reader_->engine().stats.arrived_blocks, 16);
  EXPECT_EQ(store_->stats().tiers[0].hits, 0);
  store_->RunBackground();  // too late, and harmless
  EXPECT_EQ(store_->stats().promotions, 4);
}

}  // namespace
}  // namespace kvik::connector
