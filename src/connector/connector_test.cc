// SPDX-License-Identifier: Apache-2.0
#include "connector/connector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "codec/testing/made_kv.h"
#include "connector/testing/map_source.h"
#include "connector/testing/toy_engine.h"

namespace kvik::connector {
namespace {

using testing::MapSource;
using testing::ToyEngine;
using testing::ToyGeometry;
using testing::ToyKeys;
using testing::ToyRequest;

std::shared_ptr<const ProfileSet> ToyProfiles(int32_t chunk_tokens = 64) {
  const kv::KvGeometry geometry = ToyGeometry();
  const codec::ModelFacts model =
      codec::testing::MadeModel(geometry.num_layers, geometry.num_kv_heads, geometry.head_dim);
  auto profiles = ProfileSet::Create(model, nullptr, chunk_tokens, Isa::kScalar);
  KVIK_CHECK(profiles.has_value(), "%s", profiles.error().message.c_str());
  return std::move(profiles).value();
}

// A connector whose every step is driven by hand.
struct Rig {
  explicit Rig(ConnectorOptions options = {}, int32_t num_blocks = 256, uint64_t seed = 1,
               std::shared_ptr<const ProfileSet> profiles = ToyProfiles())
      : source(std::make_shared<MapSource>("map", clock, seed)) {
    options.io_threads = 0;
    if (options.compute.token_us == kv::CostModel::Default().token_us) {
      options.compute.token_us = 1000;  // dear, so that loading is worth it
    }
    ConnectorParts parts;
    parts.clock = &clock;
    parts.profiles = std::move(profiles);
    parts.sources = {source};
    parts.targets = {source};
    auto made = Connector::Create(std::move(options), std::move(parts));
    KVIK_CHECK(made.has_value(), "%s", made.error().message.c_str());
    connector = std::move(made).value();
    engine = std::make_unique<ToyEngine>(*connector, clock, num_blocks, seed);
  }
  ~Rig() { connector->Detach(); }

  // Everything that happens at this moment.
  void Settle() {
    bool any = true;
    while (any) {
      any = source->RunDue();
      while (connector->RunDue()) {
        any = true;
      }
    }
  }
  void Tick(int64_t us = 1000) {
    Settle();
    engine->Step();
    Settle();
    clock.Advance(us);
  }
  // Until every request is over and everything is let go.
  void Drain() {
    for (int i = 0; i < 100000; ++i) {
      Tick(10'000);
      if (engine->idle() && engine->held() == 0) {
        return;
      }
    }
    FAIL() << engine->open_requests() << " requests are open, " << engine->held()
           << " blocks are held";
  }

  ManualClock clock{1'000'000};
  std::shared_ptr<MapSource> source;
  std::unique_ptr<Connector> connector;
  std::unique_ptr<ToyEngine> engine;
};

ToyRequest RequestOf(std::vector<uint64_t> choices, kv::MinQuality quality = {}) {
  ToyRequest request;
  request.keys = ToyKeys(choices);
  request.num_tokens = static_cast<int32_t>(request.keys.size()) * 16 + 3;
  request.quality = quality;
  return request;
}

std::vector<uint64_t> Prompt(uint64_t id, size_t blocks) {
  std::vector<uint64_t> choices(blocks);
  for (size_t i = 0; i < blocks; ++i) {
    choices[i] = id * 1000 + i;
  }
  return choices;
}

TEST(ConnectorTest, StoresWhatIsNewAndLoadsItAgain) {
  Rig rig;
  rig.engine->Submit(RequestOf(Prompt(1, 10)));
  rig.Drain();
  EXPECT_EQ(rig.engine->stats.computed_blocks, 10);
  // Chunks of four blocks and a tail of two.
  EXPECT_EQ(rig.source->objects().size(), 3U);
  const ConnectorCounters stored = rig.connector->counters();
  EXPECT_EQ(stored.stored_objects, 3);
  EXPECT_EQ(stored.held_blocks, 0);

  rig.engine->Evict(100);
  rig.engine->Submit(RequestOf(Prompt(1, 10)));
  rig.Drain();
  EXPECT_EQ(rig.engine->stats.arrived_blocks, 10);
  EXPECT_EQ(rig.engine->stats.computed_blocks, 10);
  const ConnectorCounters counters = rig.connector->counters();
  EXPECT_EQ(counters.loads, 3);
  EXPECT_EQ(counters.failed_loads, 0);
  EXPECT_EQ(counters.loading_blocks, 0);
  EXPECT_EQ(counters.open_tickets, 0);
  EXPECT_EQ(counters.loaded_raw_bytes, 10 * ToyGeometry().bytes_per_block());
  const auto& report = rig.engine->reports.back();
  ASSERT_NE(report, nullptr);
  EXPECT_EQ(report->profile, "lossless");
  EXPECT_EQ(report->wire_bytes, static_cast<int64_t>(counters.loaded_wire_bytes));
  EXPECT_EQ(report->raw_bytes, static_cast<int64_t>(counters.loaded_raw_bytes));
  EXPECT_FALSE(report->why.empty());
}

// The last token is always computed, and with it its block: what was stored of the same prompt ends
// with that block all the same.
TEST(ConnectorTest, TheSamePromptLoadsAllButItsLastBlock) {
  Rig rig;
  ToyRequest request = RequestOf(Prompt(1, 8));
  request.num_tokens = 8 * 16;
  rig.engine->Submit(request);
  rig.Drain();
  rig.engine->Evict(100);
  rig.engine->Submit(request);
  rig.Drain();
  EXPECT_EQ(rig.engine->stats.arrived_blocks, 7);
  EXPECT_EQ(rig.engine->stats.computed_blocks, 8 + 1);
}

TEST(ConnectorTest, ThePromptsLastChunkIsStoredWithAndWithoutTheAnswer) {
  Rig rig;
  ToyRequest request = RequestOf(Prompt(1, 7));
  request.generated_blocks = 1;
  request.num_tokens = 6 * 16 + 2;
  rig.engine->Submit(request);
  rig.Drain();
  EXPECT_EQ(rig.source->objects().size(), 3U);
  EXPECT_EQ(rig.source->puts, 3);
  rig.engine->Evict(100);
  rig.engine->stats = {};
  std::vector<uint64_t> other = Prompt(1, 7);
  other.back() = 99;  // another answer to the same prompt
  request.keys = ToyKeys(other);
  rig.engine->Submit(request);
  rig.Drain();
  EXPECT_EQ(rig.engine->stats.arrived_blocks, 6);
  EXPECT_EQ(rig.engine->stats.computed_blocks, 1);
  rig.engine->Evict(100);
  rig.engine->stats = {};
  rig.engine->Submit(RequestOf(Prompt(1, 7)));  // the next turn
  rig.Drain();
  EXPECT_EQ(rig.engine->stats.arrived_blocks, 7);
}

TEST(ConnectorTest, ALongerPromptLoadsWhatItShares) {
  Rig rig;
  rig.engine->Submit(RequestOf(Prompt(1, 8)));
  rig.Drain();
  rig.engine->Evict(100);
  std::vector<uint64_t> longer = Prompt(1, 8);
  longer.insert(longer.end(), {7, 7, 7, 7});
  rig.engine->Submit(RequestOf(longer));
  rig.Drain();
  EXPECT_EQ(rig.engine->stats.arrived_blocks, 8);
  EXPECT_EQ(rig.engine->stats.computed_blocks, 8 + 4);
  rig.engine->CheckIdle();
}

// Its blocks were resident, so only the later ones are offered: the engine is asked for the others.
TEST(ConnectorTest, AChunkIsCompletedWithResidentBlocks) {
  Rig rig;
  rig.engine->Submit(RequestOf(Prompt(1, 2)));
  rig.Drain();
  EXPECT_EQ(rig.source->objects().size(), 1U);
  std::vector<uint64_t> longer = Prompt(1, 4);
  rig.engine->Submit(RequestOf(longer));
  rig.Drain();
  EXPECT_EQ(rig.engine->stats.computed_blocks, 4);
  ASSERT_EQ(rig.source->objects().size(), 2U);
  rig.engine->Evict(100);
  rig.engine->Submit(RequestOf(longer));
  rig.Drain();
  EXPECT_EQ(rig.engine->stats.arrived_blocks, 4);
}

TEST(ConnectorTest, ALossyProfileServesOnlyThoseWhoAcceptIt) {
  ConnectorOptions options;
  options.kv_profile = "quarot-4";
  Rig rig(options);
  rig.engine->Submit(RequestOf(Prompt(1, 8)));
  rig.Drain();
  ASSERT_EQ(rig.source->objects().size(), 2U);
  rig.engine->Evict(100);
  rig.engine->Submit(RequestOf(Prompt(1, 8)));
  rig.Drain();
  EXPECT_EQ(rig.engine->stats.arrived_blocks, 0) << "an exact request read lossy KV";
  rig.engine->Evict(100);
  rig.engine->Submit(RequestOf(Prompt(1, 8), {.allow_lossy = true, .q_min = 0.5F}));
  rig.Drain();
  EXPECT_EQ(rig.engine->stats.arrived_blocks, 0) << "its quality was never measured";
  rig.engine->Evict(100);
  rig.engine->Submit(RequestOf(Prompt(1, 8), {.allow_lossy = true, .q_min = 0.0F}));
  rig.Drain();
  EXPECT_EQ(rig.engine->stats.lossy_arrived_blocks, 8);

  // What is computed behind approximated blocks is not approximated on top.
  const size_t before = rig.source->objects().size();
  rig.engine->Evict(100);
  std::vector<uint64_t> longer = Prompt(1, 8);
  longer.insert(longer.end(), {3, 3, 3, 3});
  rig.engine->Submit(RequestOf(longer, {.allow_lossy = true, .q_min = 0.0F}));
  rig.Drain();
  EXPECT_EQ(rig.engine->stats.lossy_arrived_blocks, 16);
  EXPECT_EQ(rig.source->objects().size(), before);
}

// A lossy profile with the lower ends of q by workload.
codec::Profile LossyProfile(const std::string& name, int levels, double ratio,
                            const std::vector<std::pair<std::string, double>>& low_q) {
  codec::Profile profile;
  profile.name = name;
  profile.pipeline =
      "hadamard -> uniform(levels=" + std::to_string(levels) + ",per=token,group=128) -> pack";
  profile.ratios = {{128, ratio}, {6144, ratio}};
  for (const auto& [workload, low] : low_q) {
    codec::QualityRecord record;
    record.workload = workload;
    record.q = {low + 0.005, low, low + 0.01};
    profile.quality.push_back(record);
  }
  return profile;
}

std::shared_ptr<const ProfileSet> ProfilesWith(std::vector<codec::Profile> lossy) {
  const kv::KvGeometry geometry = ToyGeometry();
  auto library = std::make_shared<codec::ProfileLibrary>();
  library->model =
      codec::testing::MadeModel(geometry.num_layers, geometry.num_kv_heads, geometry.head_dim);
  library->side_info = std::make_shared<codec::SideInfo>();
  library->profiles = std::move(lossy);
  const auto completed = codec::CompleteProfiles(*library);
  KVIK_CHECK(completed.has_value(), "%s", completed.error().message.c_str());
  auto profiles = ProfileSet::Create(library->model, library, 64, Isa::kScalar);
  KVIK_CHECK(profiles.has_value(), "%s", profiles.error().message.c_str());
  return std::move(profiles).value();
}

// A link so slow that only size counts.
ConnectorOptions OnASlowLink(const ProfileSet& profiles) {
  ConnectorOptions options;
  options.goodput.initial_bytes_per_s = 1e5;
  options.compute.token_us = 100'000;
  for (const CodecProfile& profile : profiles.all()) {
    options.speeds.Set(control::UniformSpeeds(profile.hash, 1e9, 1e9));
  }
  return options;
}

// Whatever the link of a reader, it finds something: small for a slow one, quick for a fast one.
TEST(ConnectorTest, WhatIsStoredServesSlowLinksAndFastOnes) {
  const auto profiles =
      ProfilesWith({LossyProfile("poor", 3, 20, {{codec::kUnifiedWorkload, 0.94}}),
                    LossyProfile("quick", 16, 3, {{codec::kUnifiedWorkload, 0.98}}),
                    LossyProfile("small", 6, 8, {{codec::kUnifiedWorkload, 0.975}}),
                    LossyProfile("tiny", 4, 12, {{codec::kUnifiedWorkload, 0.955}})});
  const auto stored = [&](const control::MachineSpeeds& speeds) {
    std::vector<std::string> names;
    for (const CodecProfile* profile : profiles->ForStoring(speeds)) {
      names.push_back(profile->name);
    }
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(stored({}), (Names{kLosslessName, "small", "tiny"}));
  control::MachineSpeeds speeds;
  const auto set = [&](const char* name, double decode) {
    speeds.Set(control::UniformSpeeds(profiles->Find(name)->hash, 1e9, decode));
  };
  set("poor", 1e10);
  set("small", 1e9);
  set("tiny", 1e9);
  set("quick", 8e9);
  EXPECT_EQ(stored(speeds), (Names{kLosslessName, "small", "quick"}));
  // A profile that decodes quickly and saves too little is not quick to read.
  set("small", 5e9);
  EXPECT_EQ(stored(speeds), (Names{kLosslessName, "small", "tiny"}));
}

// Stored KV carries the profile's least quality over all workloads; a reader knows its own.
TEST(ConnectorTest, AReaderJudgesAProfileByItsWorkload) {
  const auto profiles = ProfilesWith({LossyProfile(
      "small", 4, 6, {{codec::kUnifiedWorkload, 0.97}, {"qa", 0.985}, {"code", 0.955}})});
  Rig rig(OnASlowLink(*profiles), 256, 1, profiles);
  rig.engine->Submit(RequestOf(Prompt(1, 8)));
  rig.Drain();
  for (const auto& [workload, expected] : {std::pair{"qa", "small"}, {"code", "lossless"}}) {
    SCOPED_TRACE(workload);
    rig.engine->Evict(100);
    rig.engine->stats = {};
    ToyRequest request = RequestOf(Prompt(1, 8), {true, 0.975F});
    request.workload = workload;
    rig.engine->Submit(request);
    rig.Drain();
    EXPECT_EQ(rig.engine->stats.arrived_blocks, 8);
    EXPECT_EQ(rig.connector->counters().refused_quality, 0);
    ASSERT_NE(rig.engine->reports.back(), nullptr);
    EXPECT_EQ(rig.engine->reports.back()->profile, expected);
  }
}

// A session goes on with another kind of work, or more wanted: what it left in the cache was good
// enough for what it did before.
TEST(ConnectorTest, WhatIsCachedIsJudgedByTheNextRequestsWorkload) {
  const auto profiles = ProfilesWith({LossyProfile(
      "small", 4, 6, {{codec::kUnifiedWorkload, 0.97}, {"qa", 0.985}, {"code", 0.955}})});
  Rig rig(OnASlowLink(*profiles), 256, 1, profiles);
  const auto ask = [&](const std::string& workload, float q_min) {
    rig.engine->stats = {};
    ToyRequest request = RequestOf(Prompt(1, 8), {true, q_min});
    request.workload = workload;
    rig.engine->Submit(request);
    rig.Drain();
    return rig.engine->stats.arrived_blocks;
  };
  rig.engine->Submit(RequestOf(Prompt(1, 8)));
  rig.Drain();
  rig.engine->Evict(100);
  EXPECT_EQ(ask("qa", 0.975F), 8);
  EXPECT_EQ(ask("qa", 0.98F), 0) << "it is cached";
  EXPECT_EQ(ask("code", 0.95F), 0) << "good enough for all work";
  EXPECT_EQ(ask("qa", 0.99F), 8) << "not so good";
  EXPECT_EQ(ask("code", 0.96F), 8) << "its q is that of other work";
  EXPECT_EQ(rig.connector->counters().refused_quality, 0);
}

// Two lossy profiles of known quality beside lossless.
TEST(ConnectorTest, TheSmallestEncodingThatIsGoodEnoughIsLoaded) {
  const auto profiles =
      ProfilesWith({LossyProfile("coarse", 4, 6, {{codec::kUnifiedWorkload, 0.955}}),
                    LossyProfile("fine", 16, 3, {{codec::kUnifiedWorkload, 0.985}})});
  Rig rig(OnASlowLink(*profiles), 256, 1, profiles);
  rig.engine->Submit(RequestOf(Prompt(1, 8)));
  rig.Drain();
  EXPECT_EQ(rig.source->objects().size(), 6U) << "two chunks in three profiles";

  struct Case {
    kv::MinQuality quality;
    const char* profile;
    float q;
  };
  for (const Case& c :
       {Case{{}, "lossless", 1.0F}, Case{{true, 0.99F}, "lossless", 1.0F},
        Case{{true, 0.97F}, "fine", 0.985F}, Case{{true, 0.9F}, "coarse", 0.955F}}) {
    SCOPED_TRACE(c.profile);
    rig.engine->Evict(100);
    rig.engine->stats = {};
    rig.engine->Submit(RequestOf(Prompt(1, 8), c.quality));
    rig.Drain();
    EXPECT_EQ(rig.engine->stats.arrived_blocks, 8);
    EXPECT_NEAR(rig.engine->stats.least_q, c.q, 1e-6);
    EXPECT_LE(rig.engine->stats.least_q, c.q);
    ASSERT_NE(rig.engine->reports.back(), nullptr);
    EXPECT_EQ(rig.engine->reports.back()->profile, c.profile);
    EXPECT_THAT(rig.engine->reports.back()->why, ::testing::HasSubstr(c.profile));
  }
}

ConnectorOptions LoadingIsWorthIt(ConnectorOptions options) {
  options.compute.token_us = 100'000;
  return options;
}

// Ten blocks in three objects, which two requests lack.
struct TwoLack : Rig {
  explicit TwoLack(const ConnectorOptions& options = {}) : Rig(LoadingIsWorthIt(options)) {
    engine->Submit(RequestOf(Prompt(1, 10)));
    Drain();
    engine->Evict(100);
    engine->stats = {};
  }
  // The first one's loads are under way and the second one waits for them.
  void SubmitBoth() {
    first = engine->Submit(RequestOf(Prompt(1, 10)));
    second = engine->Submit(RequestOf(Prompt(1, 10)));
    Settle();  // the look-ups
    source->faults.longest_delay_us = 100'000;
    engine->Step();
    EXPECT_EQ(connector->counters().loads, 3);
    EXPECT_EQ(connector->counters().shared_loads, 3);
  }
  void ExpectNothingIsLeft() {
    engine->CheckIdle();
    EXPECT_EQ(connector->counters().loading_blocks, 0);
    EXPECT_EQ(connector->counters().open_tickets, 0);
    EXPECT_EQ(connector->counters().held_blocks, 0);
  }
  kv::TicketId first = 0;
  kv::TicketId second = 0;
};

TEST(ConnectorTest, TwoRequestsThatLackTheSameBlocksLoadThemOnce) {
  TwoLack rig;
  const int64_t gets = rig.source->gets;
  rig.SubmitBoth();
  rig.Drain();
  EXPECT_EQ(rig.source->gets - gets, 3);
  EXPECT_EQ(rig.engine->stats.arrived_blocks, 20);
  EXPECT_EQ(rig.engine->stats.computed_blocks, 0);
  const ConnectorCounters counters = rig.connector->counters();
  EXPECT_EQ(counters.shared_blocks, 10);
  EXPECT_EQ(counters.loaded_raw_bytes, 10 * ToyGeometry().bytes_per_block());
  rig.ExpectNothingIsLeft();
}

// What one of them has still to ask for is shared, too.
TEST(ConnectorTest, LongLoadsAreSharedChunkByChunk) {
  ConnectorOptions options;
  options.max_loads_in_flight = 1;
  Rig rig(LoadingIsWorthIt(options));
  rig.engine->Submit(RequestOf(Prompt(1, 40)));
  rig.Drain();
  rig.engine->Evict(100);
  rig.engine->stats = {};
  rig.source->faults.longest_delay_us = 20'000;
  const int64_t gets = rig.source->gets;
  rig.engine->Submit(RequestOf(Prompt(1, 40)));
  rig.engine->Submit(RequestOf(Prompt(1, 36)));
  rig.Drain();
  EXPECT_EQ(rig.source->gets - gets, 10);
  EXPECT_EQ(rig.engine->stats.arrived_blocks, 76);
  EXPECT_EQ(rig.connector->counters().shared_blocks, 36);
}

TEST(ConnectorTest, WhenTheLoadingRequestIsAbortedTheOtherLoadsItself) {
  TwoLack rig;
  rig.SubmitBoth();
  rig.engine->Abort(rig.first);
  rig.Drain();
  EXPECT_EQ(rig.connector->counters().loads, 6);
  EXPECT_EQ(rig.engine->stats.finished, 1);
  EXPECT_EQ(rig.engine->stats.arrived_blocks, 10);
  EXPECT_EQ(rig.engine->stats.computed_blocks, 0);
  rig.ExpectNothingIsLeft();
}

// Of several that waited one loads and the others wait for that one, as often as it takes.
TEST(ConnectorTest, WhenTheLoadingRequestIsAbortedOneOfTheOthersLoadsForAll) {
  TwoLack rig;
  rig.SubmitBoth();
  rig.source->faults.longest_delay_us = 0;
  for (int i = 0; i < 3; ++i) {
    rig.engine->Submit(RequestOf(Prompt(1, 10)));
  }
  rig.Settle();
  rig.source->faults.longest_delay_us = 100'000;
  rig.engine->Step();
  ASSERT_EQ(rig.connector->counters().loads, 3);
  ASSERT_EQ(rig.connector->counters().shared_loads, 12);
  rig.engine->Abort(rig.first);
  rig.Settle();
  EXPECT_EQ(rig.connector->counters().loads, 6);
  rig.Drain();
  EXPECT_EQ(rig.connector->counters().loads, 6) << "three objects, twice";
  EXPECT_EQ(rig.connector->counters().shared_blocks, 30);
  EXPECT_EQ(rig.engine->stats.finished, 4);
  EXPECT_EQ(rig.engine->stats.arrived_blocks, 40);
  EXPECT_EQ(rig.engine->stats.computed_blocks, 0);
  rig.ExpectNothingIsLeft();
}

TEST(ConnectorTest, WhenTheWaitingRequestIsAbortedTheOtherGoesOn) {
  TwoLack rig;
  rig.SubmitBoth();
  rig.engine->Abort(rig.second);
  rig.Drain();
  EXPECT_EQ(rig.connector->counters().loads, 3);
  EXPECT_EQ(rig.engine->stats.arrived_blocks, 10);
  EXPECT_EQ(rig.connector->counters().shared_blocks, 0);
  rig.ExpectNothingIsLeft();
}

TEST(ConnectorTest, WhenASharedLoadFailsTheOtherTriesItself) {
  TwoLack rig;
  rig.source->faults.get_error = 1;
  rig.SubmitBoth();
  rig.source->faults.get_error = 0;
  rig.Drain();
  EXPECT_EQ(rig.engine->stats.finished, 2);
  EXPECT_EQ(rig.engine->stats.arrived_blocks, 10);
  EXPECT_EQ(rig.engine->stats.computed_blocks, 10);
  rig.ExpectNothingIsLeft();
}

TEST(ConnectorTest, ASharedLoadThatFallsSilentHoldsNobodyUpForLong) {
  ConnectorOptions options;
  options.load_timeout_us = 300'000;
  TwoLack rig(options);
  rig.source->faults.get_silence = 1;
  rig.SubmitBoth();
  const int64_t begin_us = rig.clock.NowMicros();
  rig.Drain();
  EXPECT_LT(rig.clock.NowMicros() - begin_us, 2'000'000);
  EXPECT_EQ(rig.engine->stats.finished, 2);
  EXPECT_EQ(rig.engine->stats.arrived_blocks, 0);
  EXPECT_EQ(rig.engine->stats.computed_blocks, 20);
  rig.ExpectNothingIsLeft();
}

TEST(ConnectorTest, DamageIsAMissAndTheObjectGoes) {
  Rig rig;
  rig.engine->Submit(RequestOf(Prompt(1, 4)));
  rig.Drain();
  rig.engine->Evict(100);
  rig.source->faults.get_flipped = 1;
  rig.engine->Submit(RequestOf(Prompt(1, 4)));
  rig.Drain();
  EXPECT_EQ(rig.engine->stats.arrived_blocks, 0);
  EXPECT_EQ(rig.engine->stats.computed_blocks, 8);
  const ConnectorCounters counters = rig.connector->counters();
  EXPECT_EQ(counters.damaged_objects, 1);
  EXPECT_EQ(counters.failed_blocks, 4);
  EXPECT_EQ(rig.source->discards, 1);
}

TEST(ConnectorTest, DamageOnTheWayIsAMissAndTheObjectStays) {
  Rig rig;
  rig.engine->Submit(RequestOf(Prompt(1, 4)));
  rig.Drain();
  rig.engine->Evict(100);
  rig.source->faults.get_damaged_link = 1;
  rig.engine->Submit(RequestOf(Prompt(1, 4)));
  rig.Drain();
  EXPECT_EQ(rig.engine->stats.arrived_blocks, 0);
  EXPECT_EQ(rig.connector->counters().damaged_objects, 0);
  EXPECT_EQ(rig.source->discards, 0);
  rig.engine->Evict(100);
  rig.source->faults.get_damaged_link = 0;
  rig.engine->Submit(RequestOf(Prompt(1, 4)));
  rig.Drain();
  EXPECT_EQ(rig.engine->stats.arrived_blocks, 4);
}

TEST(ConnectorTest, WhatDoesNotComeInTimeIsComputed) {
  ConnectorOptions options;
  options.load_timeout_us = 300'000;
  Rig rig(options);
  rig.engine->Submit(RequestOf(Prompt(1, 4)));
  rig.Drain();
  rig.engine->Evict(100);
  rig.source->faults.get_silence = 1;
  rig.engine->Submit(RequestOf(Prompt(1, 4)));
  rig.Drain();
  EXPECT_EQ(rig.engine->stats.computed_blocks, 8);
  EXPECT_EQ(rig.engine->stats.arrived_blocks, 0);
  EXPECT_EQ(rig.engine->stats.not_coming_blocks, 4);
}

TEST(ConnectorTest, AClockThatJumpsAheadCostsALoadAndNothingElse) {
  Rig rig;
  rig.engine->Submit(RequestOf(Prompt(1, 16)));
  rig.Drain();
  rig.source->faults.longest_delay_us = 200'000;
  int interrupted = 0;
  for (int ticks = 1; ticks < 40; ++ticks) {
    rig.engine->Evict(100);
    rig.engine->Submit(RequestOf(Prompt(1, 16)));
    for (int i = 0; i < ticks; ++i) {
      rig.Tick(10'000);
    }
    interrupted += rig.connector->counters().loading_blocks > 0 ? 1 : 0;
    rig.clock.Advance(int64_t{24} * 3600 * 1'000'000);
    rig.Drain();
    rig.engine->CheckIdle();
    EXPECT_EQ(rig.connector->counters().loading_blocks, 0);
    EXPECT_EQ(rig.connector->counters().held_blocks, 0);
    EXPECT_EQ(rig.engine->stats.finished, ticks + 1);
  }
  EXPECT_GT(interrupted, 5);
  rig.source->faults.longest_delay_us = 0;
  const int64_t arrived_blocks = rig.engine->stats.arrived_blocks;
  rig.engine->Evict(100);
  rig.engine->Submit(RequestOf(Prompt(1, 16)));
  rig.Drain();
  EXPECT_EQ(rig.engine->stats.arrived_blocks, arrived_blocks + 16);
}

TEST(ConnectorTest, ASourceThatDoesNotAnswerHoldsNobodyUp) {
  Rig rig;
  rig.source->faults.lookup_silence = 1;
  const int64_t begin = rig.clock.NowMicros();
  rig.engine->Submit(RequestOf(Prompt(1, 4)));
  rig.Drain();
  EXPECT_LE(rig.clock.NowMicros() - begin, 500'000);
  EXPECT_EQ(rig.engine->stats.finished, 1);
  EXPECT_EQ(rig.connector->counters().lookup_failures, 1);
}

TEST(ConnectorTest, ACloseStopsLoadsAndEveryBlockIsConfirmed) {
  Rig rig;
  rig.engine->Submit(RequestOf(Prompt(1, 40)));
  rig.Drain();
  rig.engine->Evict(100);
  rig.source->faults.longest_delay_us = 100'000;
  const kv::TicketId ticket = rig.engine->Submit(RequestOf(Prompt(1, 40)));
  for (int i = 0; i < 120; ++i) {
    rig.Tick();
  }
  EXPECT_GT(rig.connector->counters().loading_blocks, 0);
  rig.engine->Abort(ticket);
  rig.Settle();
  rig.engine->Step();
  EXPECT_TRUE(rig.engine->idle());
  EXPECT_EQ(rig.connector->counters().loading_blocks, 0);
  rig.engine->CheckIdle();
}

TEST(ConnectorTest, DetachLeavesNothingBehind) {
  Rig rig;
  rig.engine->Submit(RequestOf(Prompt(1, 40)));
  rig.Drain();
  rig.engine->Evict(100);
  rig.source->faults.longest_delay_us = 100'000;
  rig.engine->Submit(RequestOf(Prompt(1, 40)));
  for (int i = 0; i < 50; ++i) {
    rig.Tick();
  }
  rig.connector->Detach();
  EXPECT_TRUE(rig.connector->Poll().empty());
  // What the source still says falls on deaf ears.
  rig.clock.Advance(10'000'000);
  rig.source->RunDue();
  EXPECT_TRUE(rig.connector->Poll().empty());
}

// The last that a process computes before it ends.
TEST(ConnectorTest, WhatWasTakenIsStoredAlthoughTheEngineLeaves) {
  class Target final : public ObjectTarget {
   public:
    std::string name() const override { return "target"; }
    void Put(NewObject /*object*/, int64_t /*deadline_us*/, Stored done) override {
      ++puts;
      done({});
    }
    std::atomic<int> puts{0};
  };
  const auto target = std::make_shared<Target>();
  ManualClock clock{1'000'000};
  ConnectorOptions options;
  options.io_threads = 1;
  options.max_storing_share = 1;
  ConnectorParts parts;
  parts.clock = &clock;
  parts.profiles = ToyProfiles();
  parts.targets = {target};
  auto connector = Connector::Create(std::move(options), std::move(parts));
  ASSERT_TRUE(connector.has_value()) << connector.error().message;
  ToyEngine engine(**connector, clock, 256, 1);
  engine.Submit(RequestOf(Prompt(1, 200)));
  while (!engine.idle()) {
    engine.Step();
  }
  (*connector)->Detach();
  (*connector)->Flush();
  EXPECT_EQ(target->puts, 50);
  EXPECT_EQ((*connector)->counters().stored_objects, 50);
}

TEST(ConnectorTest, AnUnknownProfileIsRefusedByName) {
  ManualClock clock;
  ConnectorOptions options;
  options.kv_profile = "no-such-thing";
  ConnectorParts parts;
  parts.clock = &clock;
  parts.profiles = ToyProfiles();
  auto made = Connector::Create(options, std::move(parts));
  ASSERT_FALSE(made.has_value());
  EXPECT_THAT(made.error().message, ::testing::HasSubstr("no-such-thing"));
  EXPECT_THAT(made.error().message, ::testing::HasSubstr("lossless"));
  EXPECT_TRUE(CheckQuality(*ToyProfiles(), "lossless", {}).has_value());
  EXPECT_TRUE(CheckQuality(*ToyProfiles(), kAdaptive, {}).has_value());
  EXPECT_FALSE(CheckQuality(*ToyProfiles(), "quarot-4", {}).has_value());
}

// Many requests that share beginnings, with everything going wrong: no wrong byte is accepted,
// every block of a Load is confirmed once, every reference comes back (all checked by the engine).
TEST(ConnectorTest, AnythingMayGoWrong) {
  for (const uint64_t seed : {1, 2, 3, 4}) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    ConnectorOptions options;
    options.load_timeout_us = 400'000;
    options.max_loads_in_flight = static_cast<int32_t>(1 + rng.Below(4));
    options.store_profiles = {"lossless", "quarot-4", "raw"};
    options.seed = seed;
    Rig rig(options, /*num_blocks=*/96, seed);
    rig.source->faults = {.lookup_error = 0.1,
                          .lookup_silence = 0.05,
                          .lookup_lies = 0.1,
                          .get_error = 0.1,
                          .get_damaged_link = 0.05,
                          .get_silence = 0.05,
                          .get_truncated = 0.1,
                          .get_flipped = 0.1,
                          .get_swapped = 0.1,
                          .put_error = 0.1,
                          .longest_delay_us = 50'000};
    int submitted = 0;
    for (int step = 0; step < 3000; ++step) {
      if (rig.engine->open_requests() < 5 && rng.Below(10) == 0) {
        std::vector<uint64_t> choices;
        const size_t blocks = 1 + rng.Below(14);
        for (size_t i = 0; i < blocks; ++i) {
          choices.push_back(rng.Below(i < 4 ? 2 : 3));
        }
        ToyRequest request = RequestOf(choices);
        request.num_tokens -= static_cast<int32_t>(rng.Below(4));  // 0: the last block is no load
        if (rng.Below(3) == 0) {
          request.quality = {.allow_lossy = true, .q_min = 0.0F};
        }
        rig.engine->Submit(std::move(request));
        ++submitted;
      }
      if (rng.Below(40) == 0) {
        const auto tickets = rig.engine->tickets();
        if (!tickets.empty()) {
          rig.engine->Abort(tickets[rng.Below(tickets.size())]);
        }
      }
      if (rng.Below(20) == 0) {
        rig.engine->Evict(rng.Below(40));
      }
      if (rng.Below(100) == 0) {
        rig.connector->NeedRoom(static_cast<int32_t>(rng.Below(10)));
      }
      rig.Tick(static_cast<int64_t>(rng.Below(5000)));
    }
    rig.Drain();
    rig.engine->CheckIdle();
    const ConnectorCounters counters = rig.connector->counters();
    EXPECT_EQ(counters.loading_blocks, 0);
    EXPECT_EQ(counters.open_tickets, 0);
    EXPECT_EQ(counters.held_blocks, 0);
    EXPECT_EQ(counters.arrived_blocks, rig.engine->stats.arrived_blocks);
    EXPECT_EQ(counters.given_up_blocks + counters.late_blocks + counters.failed_blocks,
              rig.engine->stats.not_coming_blocks);
    EXPECT_GT(submitted, 100);
    EXPECT_GT(counters.arrived_blocks, 50);
    EXPECT_GT(counters.shared_loads, 0);
    EXPECT_GT(counters.shared_blocks, 0);
    EXPECT_GT(counters.failed_blocks, 10);
    EXPECT_GT(counters.damaged_objects, 3);
    EXPECT_GT(counters.stored_objects, 20);
  }
}

}  // namespace
}  // namespace kvik::connector
