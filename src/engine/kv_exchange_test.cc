// SPDX-License-Identifier: Apache-2.0
// KV that enters and leaves the pool, driven through the engine: a connector that does what each
// test says, and an executor whose answers tell exactly which KV they were computed from.
#include "engine/kv_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>

#include "base/bounded_queue.h"
#include "base/rng.h"
#include "engine/engine.h"
#include "engine/engine_loop.h"
#include "engine/testing/engine_fixture.h"
#include "engine/testing/fake_connector.h"
#include "engine/testing/fake_executor.h"
#include "engine/testing/known_kv.h"
#include "engine/testing/requests.h"
#include "kv/testing/each_policy.h"

namespace kvik::engine {
namespace {

using kv::BlockQuality;
using kv::BlockRange;
using kv::ContentKey;
using kv::Fidelity;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Ticket = FakeConnector::Ticket;

std::vector<ContentKey> KeysOf(std::span<const TokenId> tokens) {
  return engine::KeysOf(tokens, kBlock);
}

class KvExchangeTest : public EngineFixture {
 protected:
  void Start(int32_t num_blocks, const std::function<void(EngineOptions&)>& change = {},
             std::optional<kv::KvGeometry> geometry = std::nullopt) {
    StartEngine(num_blocks, change, geometry);
    ASSERT_TRUE(engine_->Connect(connector_, {}).has_value());
  }
  void TearDown() override {
    if (engine_ != nullptr) {
      engine_->AbortAll();
      engine_.reset();
      EXPECT_FALSE(connector_.attached);
    }
  }

  RequestId Submit(const Request& request) {
    known_.Add(request.prompt);
    return EngineFixture::Submit(request);
  }
  Received RunOne(const Request& request) {
    known_.Add(request.prompt);
    return EngineFixture::RunOne(request);
  }

  void WriteGarbage(BlockId block) {
    for (uint64_t& slot : executor_->kv().Block(block)) {
      slot = Rng(7, slot).Next();
    }
  }
  void WriteKv(const Ticket& ticket, int32_t index, bool lossy) {
    const KnownKv::Slots& slots = known_.At(ticket.keys[static_cast<size_t>(index)]);
    std::ranges::copy(lossy ? KnownKv::Distort(slots, 1) : slots,
                      executor_->kv().Block(ticket.loading.at(index)).begin());
  }
  void Arrive(Ticket& ticket, const BlockRange& range) {
    for (int32_t i = range.first_block; i < range.end_block(); ++i) {
      WriteKv(ticket, i, /*lossy=*/false);
    }
    connector_.Arrive(ticket, range);
  }
  void ArriveLossy(Ticket& ticket, const BlockRange& range, float q) {
    for (int32_t i = range.first_block; i < range.end_block(); ++i) {
      WriteKv(ticket, i, /*lossy=*/true);
    }
    connector_.Arrive(ticket, range, {Fidelity::kLossy, q});
  }
  // The connector claims these, of what is missing.
  void ClaimAlways(const std::vector<BlockRange>& ranges) {
    connector_.on_claim = [ranges](Ticket&, int32_t, std::span<const BlockRange> missing) {
      std::vector<BlockRange> claims;
      for (const BlockRange& range : ranges) {
        for (const BlockRange& gap : missing) {
          const int32_t begin = std::max(range.first_block, gap.first_block);
          const int32_t end = std::min(range.end_block(), gap.end_block());
          if (begin < end) {
            claims.push_back({begin, end - begin});
          }
        }
      }
      return claims;
    };
  }

  FakeConnector connector_;
  KnownKv known_{kBlock};
  Rng rng_{1};
};

class KvExchangeUnderEachPolicy : public KvExchangeTest,
                                  public testing::WithParamInterface<std::string_view> {
 protected:
  void SetUp() override { policy_ = GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Policies, KvExchangeUnderEachPolicy, kv::EachPolicy(), kv::PolicyTestName);

TEST_F(KvExchangeTest, TheConnectorHearsWhatItNeedsToKnow) {
  Start(64);
  Request request = Greedy(RandomPrompt(rng_, 6 * kBlock), 4);
  RunOne(Greedy({request.prompt.begin(), request.prompt.begin() + 2 * kBlock + 1}, 1));
  request.quality = {true, 0.9F};
  request.workload = "qa";
  request.slo_ttft_us = 5'000;
  request.slo_us = 7'000;
  request.transfer = std::make_shared<kv::TransferParams>(kv::TransferParams{"peer", "r1", true});
  const RequestId id = Submit(request);
  const Ticket& ticket = connector_.OpenTicketOf(id);
  EXPECT_EQ(ticket.keys, KeysOf(request.prompt));
  EXPECT_EQ(ticket.request.num_loadable, 5) << "the last token is computed";
  EXPECT_THAT(ticket.request.resident, ElementsAre(BlockRange{0, 2}));
  EXPECT_EQ(ticket.request.num_tokens, 6 * kBlock);
  EXPECT_EQ(ticket.request.quality.q_min, 0.9F);
  EXPECT_EQ(ticket.request.workload, "qa");
  EXPECT_EQ(ticket.request.slo_ttft_us, 5'000);
  EXPECT_EQ(ticket.request.slo_us, 7'000);
  EXPECT_EQ(ticket.request.submitted_us, clock_.NowMicros());
  EXPECT_EQ(ticket.request.transfer->remote_request, "r1");
  EXPECT_FALSE(ticket.request.resumed);
  std::vector<BlockRange> seen;
  connector_.on_claim = [&](Ticket&, int32_t front, std::span<const BlockRange> missing) {
    EXPECT_EQ(front, 2);
    seen.assign(missing.begin(), missing.end());
    return std::vector<BlockRange>();
  };
  connector_.on_close = [](Ticket&) {
    auto report = std::make_shared<kv::TransferReport>();
    report->why = "no reason";
    return report;
  };
  Run();
  EXPECT_THAT(seen, ElementsAre(BlockRange{2, 3}));
  EXPECT_EQ(ticket.fate.reason, kv::CloseReason::kFinished);
  EXPECT_EQ(ticket.fate.first_token_us, received_.at(id).timing.first_token_us);
  EXPECT_EQ(received_.at(id).transfer->why, "no reason");
  ExpectSolo(id);
  ExpectNothingHeld();
}

TEST_F(KvExchangeTest, ConnectNeedsAPrefixCache) {
  FakeExecutor executor({});
  EngineOptions options;
  options.cache.num_blocks = 64;
  options.cache.prefix_caching = false;
  const auto engine = Engine::Create(options, executor, clock_).value();
  EXPECT_EQ(engine->Connect(connector_, {}).error().code, ErrorCode::kInvalidInput);
}

TEST_P(KvExchangeUnderEachPolicy, ATailThatArrivesInTimeIsNotComputed) {
  Start(64, [](EngineOptions& o) { o.scheduler.chunk_max = o.scheduler.chunk_floor = 2 * kBlock; });
  ClaimAlways({{4, 4}});
  const RequestId id = Submit(Greedy(RandomPrompt(rng_, 8 * kBlock + 5), 6));
  Step();
  Ticket& ticket = connector_.OpenTicketOf(id);
  EXPECT_THAT(ticket.loads, ElementsAre(BlockRange{4, 4}));
  Arrive(ticket, {4, 3});  // before the front is there
  Step();
  Arrive(ticket, {7, 1});  // just when it is there
  Run();
  EXPECT_THAT(rows_, ElementsAre(2 * kBlock, 2 * kBlock, 5, 1, 1, 1, 1, 1));
  EXPECT_EQ(ticket.yields, 0);
  ExpectSolo(id);
  const Usage& usage = received_.at(id).usage;
  EXPECT_EQ(usage.external_tokens, 4 * kBlock);
  EXPECT_EQ(usage.external_blocks, 4);
  EXPECT_EQ(usage.cached_tokens, 0);
  EXPECT_EQ(usage.least_q, 1.0F);
  const EngineStats stats = engine_->stats();
  EXPECT_EQ(stats.prompt_tokens_external, 4 * kBlock);
  EXPECT_EQ(stats.prompt_tokens_computed, 4 * kBlock + 5);
  EXPECT_EQ(stats.exchange.claimed, 4);
  EXPECT_EQ(stats.exchange.arrived, 4);
  EXPECT_EQ(stats.exchange.query_tokens, 8 * kBlock);
  // What was loaded is in the cache as what was computed is.
  EXPECT_EQ(RunOne(requests_.at(id)).usage.cached_tokens, 8 * kBlock);
  ExpectNothingHeld();
}

TEST_F(KvExchangeTest, AtAClaimedBlockTheConnectorSaysWhetherToWait) {
  Start(64);
  ClaimAlways({{0, 8}});
  int64_t ask_again_us = clock_.NowMicros() + 300;
  connector_.on_yield = [&](Ticket&, int32_t front) {
    EXPECT_EQ(front, 0);
    return ask_again_us;
  };
  const RequestId id = Submit(Greedy(RandomPrompt(rng_, 8 * kBlock + 5), 2));
  EXPECT_THAT(Step().idle_reason, HasSubstr("KV from elsewhere"));
  StepReport report = Step();
  Ticket& ticket = connector_.OpenTicketOf(id);
  EXPECT_EQ(ticket.yields, 1);
  EXPECT_EQ(report.idle_us, 300);
  clock_.Advance(299);
  EXPECT_EQ(Step().idle_us, 1);
  EXPECT_EQ(ticket.yields, 1);
  clock_.Advance(1);
  ask_again_us = kv::kUntilEvent;
  EXPECT_EQ(Step().idle_us, kv::kUntilEvent);
  EXPECT_EQ(ticket.yields, 2);
  Arrive(ticket, {0, 8});
  Run();
  EXPECT_THAT(rows_, ElementsAre(5, 1));
  ExpectSolo(id);
}

TEST_F(KvExchangeTest, WhatIsGivenUpAtTheFrontIsComputedInTheSameStep) {
  Start(64);
  ClaimAlways({{2, 6}});
  connector_.on_yield = [&](Ticket& ticket, int32_t front) {
    WriteGarbage(ticket.loading.at(front));
    connector_.Fail(ticket, {front, 3}, kv::LoadEnd::kGivenUp);
    return kv::kUntilEvent;
  };
  const RequestId id = Submit(Greedy(RandomPrompt(rng_, 8 * kBlock + 5), 2));
  Step();
  Step();
  Ticket& ticket = connector_.OpenTicketOf(id);
  Arrive(ticket, {5, 3});
  Run();
  EXPECT_THAT(rows_, ElementsAre(2 * kBlock, 3 * kBlock, 5, 1));
  ExpectSolo(id);
  EXPECT_EQ(received_.at(id).usage.external_blocks, 3);
  EXPECT_EQ(engine_->stats().exchange.given_up, 3);
  ExpectNothingHeld();
}

TEST_F(KvExchangeTest, BlocksThatFailedAreComputedAndMayBeClaimedAgain) {
  Start(64, [](EngineOptions& o) { o.scheduler.chunk_max = o.scheduler.chunk_floor = kBlock; });
  ClaimAlways({{3, 4}});
  const RequestId id = Submit(Greedy(RandomPrompt(rng_, 8 * kBlock + 5), 2));
  Step();
  Ticket& ticket = connector_.OpenTicketOf(id);
  WriteGarbage(ticket.loading.at(3));
  connector_.Fail(ticket, {3, 1}, kv::LoadEnd::kLate);
  connector_.Fail(ticket, {5, 2});
  Step();
  EXPECT_EQ(engine_->stats().exchange.late, 1);
  EXPECT_EQ(engine_->stats().exchange.failed, 2);
  ClaimAlways({{6, 1}});
  connector_.Push(kv::Answered{ticket.request.ticket});
  Step();
  EXPECT_THAT(ticket.loads, ElementsAre(BlockRange{3, 4}, BlockRange{6, 1}));
  Arrive(ticket, {6, 1});
  Arrive(ticket, {4, 1});
  Run();
  ExpectSolo(id);
  EXPECT_EQ(received_.at(id).usage.external_blocks, 2);
  ExpectNothingHeld();
}

TEST_F(KvExchangeTest, ANewRequestWaitsForTheAnswerButNotForLong) {
  Start(64, [](EngineOptions& o) { o.max_answer_wait_us = 5'000; });
  connector_.on_ask = [](Ticket&) {};  // never answers
  const RequestId first = Submit(Greedy(RandomPrompt(rng_, 3 * kBlock), 3));
  const StepReport report = Step();
  EXPECT_THAT(report.idle_reason, HasSubstr("KV from elsewhere"));
  EXPECT_EQ(report.idle_us, 5'000);
  EXPECT_EQ(engine_->stats().scheduler.held_back, 1);
  EXPECT_EQ(engine_->stats().scheduler.waiting, 1);
  // Nobody waits behind it. One that is too short to have anything to load does not wait either.
  const RequestId second = Submit(Greedy(RandomPrompt(rng_, kBlock), 2));
  EXPECT_EQ(Step().num_tokens, kBlock);
  clock_.Advance(4'000);
  EXPECT_EQ(Step().num_tokens, 1 + 3 * kBlock) << "time is up";
  Run();
  ExpectSolo(first);
  ExpectSolo(second);
  EXPECT_EQ(engine_->stats().exchange.unanswered, 1);
  // Held back, it can be aborted; and answered, it runs at once.
  const RequestId third = Submit(Greedy(RandomPrompt(rng_, 3 * kBlock), 3));
  EXPECT_TRUE(engine_->Abort(third));
  const RequestId fourth = Submit(Greedy(RandomPrompt(rng_, 3 * kBlock), 3));
  connector_.Push(kv::Answered{connector_.OpenTicketOf(fourth).request.ticket});
  Run();
  ExpectSolo(fourth);
  ExpectNothingHeld();
}

TEST_F(KvExchangeTest, WhatAPeerHasPromisedIsWaitedForLonger) {
  Start(64, [](EngineOptions& o) {
    o.max_answer_wait_us = 5'000;
    o.max_promised_wait_us = 50'000;
  });
  connector_.on_ask = [](Ticket&) {};  // never answers
  Request promised = Greedy(RandomPrompt(rng_, 3 * kBlock), 3);
  auto transfer = std::make_shared<kv::TransferParams>();
  transfer->peer = "a peer";
  promised.transfer = std::move(transfer);
  const RequestId first = Submit(std::move(promised));
  const RequestId second = Submit(Greedy(RandomPrompt(rng_, 2 * kBlock), 2));
  EXPECT_EQ(Step().idle_us, 5'000);
  clock_.Advance(5'000);
  EXPECT_EQ(Step().num_tokens, 2 * kBlock) << "nobody has promised anything";
  EXPECT_EQ(engine_->stats().scheduler.held_back, 1);
  clock_.Advance(45'000);
  EXPECT_EQ(Step().num_tokens, 1 + 3 * kBlock) << "time is up";
  Run();
  ExpectSolo(first);
  ExpectSolo(second);
  ExpectNothingHeld();
}

TEST_F(KvExchangeTest, ALateAnswerStillBringsWhatIsNotComputedYet) {
  Start(64, [](EngineOptions& o) {
    o.max_answer_wait_us = 0;
    o.scheduler.chunk_max = o.scheduler.chunk_floor = kBlock + 3;
  });
  connector_.on_ask = [](Ticket&) {};
  const RequestId id = Submit(Greedy(RandomPrompt(rng_, 8 * kBlock + 5), 2));
  Step();
  Ticket& ticket = connector_.OpenTicketOf(id);
  connector_.on_claim = [](Ticket&, int32_t front, std::span<const BlockRange> missing) {
    EXPECT_EQ(front, 1);
    EXPECT_THAT(missing, ElementsAre(BlockRange{2, 6})) << "block 1 was begun";
    return std::vector<BlockRange>{{2, 6}};
  };
  connector_.Push(kv::Answered{ticket.request.ticket});
  Step();
  Arrive(ticket, {2, 6});
  Run();
  EXPECT_THAT(rows_, ElementsAre(kBlock + 3, kBlock - 3, 5, 1));
  ExpectSolo(id);
}

TEST_P(KvExchangeUnderEachPolicy, BlocksOfAnAbortedRequestStayUntilNobodyWritesToThem) {
  Start(10);
  ClaimAlways({{1, 7}});
  const RequestId id = Submit(Greedy(RandomPrompt(rng_, 8 * kBlock + 5), 2));
  Step();
  Ticket& ticket = connector_.OpenTicketOf(id);
  engine_->Abort(id);
  EXPECT_TRUE(ticket.closed);
  EXPECT_EQ(ticket.fate.reason, kv::CloseReason::kAborted);
  engine_->cache().CheckInvariant();
  EXPECT_EQ(engine_->stats().cache.loading_blocks, 7);
  EXPECT_EQ(engine_->cache().AvailableBlocks(), 3);
  // Another request cannot have them, and what is written to them does not hurt it.
  ClaimAlways({});
  const RequestId other = Submit(Greedy(RandomPrompt(rng_, 2 * kBlock), 4));
  const RequestId too_big = Submit(Greedy(RandomPrompt(rng_, 6 * kBlock), 4));
  for (int i = 0; i < 6; ++i) {
    for (const auto& [index, block] : ticket.loading) {
      WriteGarbage(block);
    }
    Step();
  }
  ExpectSolo(other);
  EXPECT_THAT(Step().idle_reason, HasSubstr("capacity"));
  // Some fail, some arrive for all that: those are cached, and the next one to come finds them.
  connector_.Fail(ticket, {1, 4}, kv::LoadEnd::kGivenUp);
  Arrive(ticket, {5, 3});
  engine_->TakeEvents();
  EXPECT_EQ(engine_->stats().exchange.abandoned, 7);
  Run();
  ExpectSolo(too_big);
  ExpectNothingHeld();
}

TEST_F(KvExchangeTest, WhatArrivesAfterAnAbortServesTheNext) {
  Start(20);
  ClaimAlways({{1, 7}});
  const RequestId id = Submit(Greedy(RandomPrompt(rng_, 8 * kBlock + 5), 2));
  Step();
  Ticket& ticket = connector_.OpenTicketOf(id);
  engine_->Abort(id);
  Arrive(ticket, {1, 7});
  engine_->TakeEvents();
  ClaimAlways({});
  const RequestId again = Submit(requests_.at(id));
  Run();
  EXPECT_EQ(received_.at(again).usage.cached_tokens, 8 * kBlock);
  EXPECT_EQ(received_.at(again).usage.external_tokens, 0);
  ExpectSolo(again);
}

TEST_F(KvExchangeTest, TheConnectorCanEndARequest) {
  Start(20);
  ClaimAlways({{0, 8}});
  const RequestId id = Submit(Greedy(RandomPrompt(rng_, 8 * kBlock + 5), 2));
  Step();
  Ticket& ticket = connector_.OpenTicketOf(id);
  connector_.Push(kv::Failed{ticket.request.ticket, Err(ErrorCode::kUnavailable, "peer gone")});
  connector_.Push(kv::Failed{ticket.request.ticket, Err(ErrorCode::kUnavailable, "twice")});
  Step();
  EXPECT_EQ(received_.at(id).finish, FinishReason::kError);
  EXPECT_EQ(received_.at(id).error->message, "peer gone");
  EXPECT_EQ(ticket.fate.reason, kv::CloseReason::kFailed);
  EXPECT_EQ(engine_->stats().cache.loading_blocks, 8);
  connector_.Fail(ticket, {0, 8});
  engine_->TakeEvents();
  ExpectNothingHeld();
}

TEST_F(KvExchangeTest, ARequestIsScheduledWhenItIsLetInAlsoIfAllOfItIsLoaded) {
  Start(64);
  ClaimAlways({{0, 2}});
  const RequestId id = Submit(Greedy(RandomPrompt(rng_, 2 * kBlock + 1), 2));
  const int64_t let_in_us = clock_.NowMicros();
  EXPECT_THAT(Step().idle_reason, HasSubstr("KV from elsewhere"));
  clock_.Advance(700);
  Arrive(connector_.OpenTicketOf(id), {0, 2});
  Run();
  const Timing& timing = received_.at(id).timing;
  EXPECT_EQ(timing.scheduled_us, let_in_us);
  EXPECT_EQ(timing.first_token_us, let_in_us + 700 + 1000);
  ExpectSolo(id);
}

TEST_F(KvExchangeTest, RequestsThatStandStillAreInNobodysWay) {
  Start(64, [](EngineOptions& o) { o.scheduler.max_num_seqs = 2; });
  ClaimAlways({{0, 2}});
  std::vector<RequestId> still;
  for (int i = 0; i < 5; ++i) {
    still.push_back(Submit(Greedy(RandomPrompt(rng_, 2 * kBlock + 5), 4)));
  }
  EXPECT_THAT(Step().idle_reason, HasSubstr("KV from elsewhere"));
  EXPECT_EQ(engine_->stats().scheduler.running, 5);
  ClaimAlways({});
  const RequestId id = Submit(Greedy(RandomPrompt(rng_, 2 * kBlock + 5), 4));
  while (!received_[id].finish) {
    ASSERT_EQ(Step().idle_reason, "");
  }
  ExpectSolo(id);
  // All of them go on at once, and still no step has more than two.
  for (const RequestId request : still) {
    Arrive(connector_.OpenTicketOf(request), {0, 2});
  }
  while (engine_->HasWork()) {
    EXPECT_LE(Step().num_requests, 2);
  }
  for (const RequestId request : still) {
    ExpectSolo(request);
  }
  ExpectNothingHeld();
}

TEST_F(KvExchangeTest, APreemptedRequestComesBackWithANewTicket) {
  Start(16, [](EngineOptions& o) { o.scheduler.chunk_max = o.scheduler.chunk_floor = kBlock; });
  ClaimAlways({{5, 3}});
  Request request = Greedy(RandomPrompt(rng_, 10 * kBlock + 5), 4);
  request.priority = 1;
  const RequestId id = Submit(request);
  Step();
  Ticket& first = connector_.OpenTicketOf(id);
  Arrive(first, {5, 1});
  Step();
  ClaimAlways({});
  const RequestId urgent = Submit(Greedy(RandomPrompt(rng_, 12 * kBlock), 4));
  Step();
  Step();
  EXPECT_TRUE(first.closed);
  EXPECT_EQ(first.fate.reason, kv::CloseReason::kPreempted);
  EXPECT_TRUE(connector_.OpenTicketOf(id).request.resumed);
  EXPECT_EQ(received_[urgent].tokens.size(), 0U);
  EXPECT_EQ(engine_->stats().cache.loading_blocks, 2) << "still written to";
  for (const auto& [index, block] : first.loading) {
    WriteGarbage(block);
  }
  ClaimAlways({{7, 2}});
  while (!received_[urgent].finish) {
    ASSERT_EQ(Step().idle_reason, "");
  }
  connector_.Fail(first, {6, 2});
  Step();
  Ticket& second = connector_.OpenTicketOf(id);
  Arrive(second, {7, 2});
  Run();
  ExpectSolo(id);
  ExpectSolo(urgent);
  EXPECT_EQ(received_.at(id).usage.preemptions, 1);
  EXPECT_EQ(received_.at(id).usage.external_blocks, 3);
  ExpectNothingHeld();
}

// ---- Quality ----

TEST_P(KvExchangeUnderEachPolicy, WhatAttendsToLossyKvIsLossyAndExactRequestsNeverReadIt) {
  Start(64);
  ClaimAlways({{2, 2}, {5, 1}});
  Request tolerant = Greedy(RandomPrompt(rng_, 8 * kBlock + 5), 20);
  tolerant.quality = {true, 0.8F};
  const RequestId id = Submit(tolerant);
  Step();
  Ticket& ticket = connector_.OpenTicketOf(id);
  ArriveLossy(ticket, {2, 2}, 0.9F);
  Step();
  ArriveLossy(ticket, {5, 1}, 0.85F);
  Run();
  EXPECT_EQ(received_.at(id).usage.external_blocks, 3);
  EXPECT_EQ(received_.at(id).usage.least_q, 0.85F);
  EXPECT_NE(received_.at(id).tokens, Solo(tolerant).tokens);

  const auto keys = KeysOf(tolerant.prompt);
  std::vector<float> q;
  for (const ContentKey& key : keys) {
    const BlockId block = engine_->cache().index().Find(key, {true, 0.0F});
    ASSERT_NE(block, kNoBlock);
    const BlockQuality quality = engine_->cache().index().quality(block);
    q.push_back(quality.fidelity == Fidelity::kExact ? 2.0F : quality.q);
  }
  EXPECT_THAT(q, ElementsAre(2, 2, 0.9F, 0.9F, 0.9F, 0.85F, 0.85F, 0.85F));

  ClaimAlways({});
  Request exact = tolerant;
  exact.quality = {};
  const RequestId exact_id = Submit(exact);
  Run();
  ExpectSolo(exact_id);
  EXPECT_EQ(received_.at(exact_id).usage.cached_tokens, 2 * kBlock);
  EXPECT_EQ(received_.at(exact_id).usage.least_q, 1.0F);
  // The exact blocks are there now, and nobody need read the others any more.
  const Received again = RunOne(tolerant);
  EXPECT_EQ(again.usage.least_q, 1.0F);
  EXPECT_EQ(again.tokens, Solo(tolerant).tokens);
  ExpectNothingHeld();
}

// What a conversation left in the cache was good enough for what it did then.
TEST_F(KvExchangeTest, CachedKvIsJudgedByTheNextTurnsWorkloadAndQuality) {
  struct Turn {
    const char* workload;
    float q_min;
    int32_t cached_blocks;
  };
  for (const Turn& next : {Turn{"math", 0.97F, 8}, Turn{"math", 0.99F, 0}, Turn{"code", 0.97F, 0},
                           Turn{"", 0.97F, 0}, Turn{"code", 0.9F, 8}}) {
    SCOPED_TRACE(testing::Message() << next.workload << " " << next.q_min);
    received_.clear();
    Start(64);
    ClaimAlways({{0, 4}});
    Request first = Greedy(RandomPrompt(rng_, 8 * kBlock + 5), 3);
    first.quality = {true, 0.97F};
    first.workload = "math";
    const RequestId id = Submit(first);
    Step();
    Ticket& ticket = connector_.OpenTicketOf(id);
    for (int32_t i = 0; i < 4; ++i) {
      WriteKv(ticket, i, /*lossy=*/true);
    }
    connector_.Arrive(ticket, {0, 4},
                      {Fidelity::kLossy, 0.92F, kv::WorkloadTag::Of("math"), 0.98F});
    Run();
    EXPECT_EQ(received_.at(id).usage.external_blocks, 4);
    EXPECT_EQ(received_.at(id).usage.least_q, 0.98F);

    ClaimAlways({});
    Request second = Greedy(first.prompt, 3);
    second.quality = {true, next.q_min};
    second.workload = next.workload;
    const RequestId second_id = Submit(second);
    Run();
    EXPECT_EQ(received_.at(second_id).usage.cached_tokens, next.cached_blocks * kBlock);
    if (next.cached_blocks == 0) {
      ExpectSolo(second_id);
    } else {
      EXPECT_EQ(received_.at(second_id).usage.least_q,
                std::string(next.workload) == "math" ? 0.98F : 0.92F);
    }
    ExpectNothingHeld();
  }
}

TEST_F(KvExchangeTest, KvThatIsNotGoodEnoughIsComputed) {
  Start(64);
  for (const kv::MinQuality quality : {kv::MinQuality{}, kv::MinQuality{true, 0.9F}}) {
    ClaimAlways({{0, 4}});
    Request request = Greedy(RandomPrompt(rng_, 8 * kBlock + 5), 3);
    request.quality = quality;
    const RequestId id = Submit(request);
    Step();
    ArriveLossy(connector_.OpenTicketOf(id), {0, 4}, 0.89F);
    Run();
    ExpectSolo(id);
    EXPECT_EQ(received_.at(id).usage.external_blocks, 0);
  }
  EXPECT_EQ(engine_->stats().exchange.refused, 8);
  ExpectNothingHeld();
}

TEST_F(KvExchangeTest, QualitiesThatMakeNoSenseAreFailedLoads) {
  Start(64);
  ClaimAlways({{0, 4}});
  Request request = Greedy(RandomPrompt(rng_, 8 * kBlock + 5), 3);
  request.quality = {true, 0.0F};
  const RequestId id = Submit(request);
  Step();
  Ticket& ticket = connector_.OpenTicketOf(id);
  connector_.Arrive(ticket, {0, 1}, {Fidelity::kLossy, std::nanf("")});
  connector_.Arrive(ticket, {1, 1}, {Fidelity::kLossy, 1.5F});
  connector_.Arrive(ticket, {2, 1}, {}, {{0, 0, 2 * kBlock, 2 * kBlock + 1}});  // exact?
  connector_.Arrive(ticket, {3, 1}, {Fidelity::kLossy, 1}, {{0, 0, 3 * kBlock, 3 * kBlock + 1}});
  Run();
  ExpectSolo(id);
  EXPECT_EQ(engine_->stats().exchange.failed, 4) << "the last: an executor without masks";
}

TEST_F(KvExchangeTest, DroppedSlotsOfLoadedBlocksAreMasked) {
  const kv::KvGeometry geometry{.num_layers = 2, .num_kv_heads = 3, .head_dim = 4};
  Start(64, {}, geometry);
  ClaimAlways({{0, 4}});
  Request request = Greedy(RandomPrompt(rng_, 8 * kBlock + 5), 3);
  request.quality = {true, 0.5F};
  const RequestId id = Submit(request);
  Step();
  Ticket& ticket = connector_.OpenTicketOf(id);
  const BlockId first = ticket.loading.at(0);
  const BlockId second = ticket.loading.at(1);
  const BlockId third = ticket.loading.at(2);
  connector_.Arrive(ticket, {0, 2}, {Fidelity::kLossy, 0.6F}, {{1, 2, 12, 20}});
  connector_.Arrive(ticket, {2, 1}, {Fidelity::kLossy, 0.6F},
                    {{2, 0, 2 * kBlock, 2 * kBlock + 1}});                        // no such layer
  connector_.Arrive(ticket, {3, 1}, {Fidelity::kLossy, 0.6F}, {{0, 0, 40, 50}});  // not its tokens
  Step();
  const kv::BlockMasks& masks = *engine_->cache().masks();
  ASSERT_NE(masks.Of(first), nullptr);
  ASSERT_NE(masks.Of(second), nullptr);
  EXPECT_EQ(masks.Of(first)[5], 0x0FFFU);
  EXPECT_EQ(masks.Of(second)[5], 0xFFF0U);
  EXPECT_EQ(masks.Of(first)[0], 0xFFFFU);
  EXPECT_EQ(masks.Of(third), nullptr);
  EXPECT_EQ(engine_->stats().exchange.failed, 2);
  Run();
  (void)engine_->cache().Clear();
  EXPECT_TRUE(masks.empty());
}

TEST_F(KvExchangeTest, ABlockThatIsResidentWhenItArrivesIsNotKeptTwice) {
  Start(64);
  ClaimAlways({{0, 8}});
  const Request request = Greedy(RandomPrompt(rng_, 8 * kBlock + 5), 3);
  const RequestId a = Submit(request);
  const RequestId b = Submit(request);
  Step();
  Ticket& ticket_a = connector_.OpenTicketOf(a);
  Ticket& ticket_b = connector_.OpenTicketOf(b);
  Arrive(ticket_a, {0, 8});
  Arrive(ticket_b, {0, 8});
  Step();
  EXPECT_EQ(engine_->stats().exchange.duplicates, 8);
  EXPECT_EQ(engine_->stats().cache.referenced_blocks, 8);
  Run();
  ExpectSolo(a);
  ExpectSolo(b);
  ExpectNothingHeld();
}

// ---- KV that leaves ----

TEST_P(KvExchangeUnderEachPolicy, OfferedBlocksStayUntilTheyAreReleased) {
  Start(12);
  std::vector<kv::SealedBlock> taken;
  connector_.on_offer = [&](const kv::SealedBlocks& sealed) {
    EXPECT_NE(sealed.ticket, 0U);
    taken.insert(taken.end(), sealed.blocks.begin(), sealed.blocks.end());
    return true;
  };
  const Request request = Greedy(RandomPrompt(rng_, 4 * kBlock + 5), 2 * kBlock);
  RunOne(request);
  auto tokens = request.prompt;
  const auto& answer = received_.begin()->second.tokens;
  tokens.insert(tokens.end(), answer.begin(), answer.end());
  const auto keys = KeysOf(tokens);
  ASSERT_EQ(taken.size(), 6U) << "prompt and answer";
  for (size_t i = 0; i < taken.size(); ++i) {
    EXPECT_EQ(taken[i].key.content, keys[i]);
    EXPECT_EQ(taken[i].first_pos, static_cast<int32_t>(i) * kBlock);
    EXPECT_EQ(taken[i].quality.fidelity, Fidelity::kExact);
  }
  EXPECT_EQ(engine_->stats().cache.held_blocks, 6);
  EXPECT_EQ(engine_->stats().cache.cached_blocks, 0);

  // They are hits all the same, and are not offered again.
  taken.clear();
  EXPECT_EQ(RunOne(request).usage.cached_tokens, 4 * kBlock);
  EXPECT_THAT(taken, IsEmpty());

  // A request that needs their room waits until the connector lets go of them.
  int32_t missing = 0;
  connector_.on_offer = {};
  connector_.on_need_room = [&](int32_t blocks) { missing = blocks; };
  const RequestId id = Submit(Greedy(RandomPrompt(rng_, 8 * kBlock), 4));
  EXPECT_THAT(Step().idle_reason, HasSubstr("capacity"));
  EXPECT_EQ(missing, 3);
  connector_.Release({connector_.held.begin(), connector_.held.end()});
  Run();
  ExpectSolo(id);
  ExpectNothingHeld();
  EXPECT_EQ(engine_->stats().exchange.released, 6);
}

TEST_P(KvExchangeUnderEachPolicy, WhatTheConnectorWantsIsLookedUpByContent) {
  Start(24);
  const Request request = Greedy(RandomPrompt(rng_, 4 * kBlock + 5), 2);
  RunOne(request);
  auto keys = KeysOf(request.prompt);
  const BlockId gone = engine_->cache().index().Find(keys[1], {});
  engine_->cache().Evict(gone);
  std::vector<std::vector<kv::SealedBlock>> answers;
  connector_.on_offer = [&](const kv::SealedBlocks& sealed) {
    EXPECT_EQ(sealed.want, answers.size() + 1);
    answers.emplace_back(sealed.blocks.begin(), sealed.blocks.end());
    return true;
  };
  connector_.Push(kv::Wanted{1, keys, {}});
  connector_.Push(kv::Wanted{2, {keys[3]}, {}});  // held twice
  connector_.Push(kv::Wanted{3, KeysOf(RandomPrompt(rng_, 2 * kBlock)), {}});
  engine_->TakeEvents();
  ASSERT_EQ(answers.size(), 3U);
  ASSERT_EQ(answers[0].size(), 3U);
  EXPECT_EQ(answers[0][1].key.content, keys[2]);
  EXPECT_THAT(answers[2], IsEmpty());
  EXPECT_EQ(engine_->stats().cache.held_blocks, 3);
  engine_->cache().CheckInvariant();
  EXPECT_EQ(engine_->cache().Clear(), 0) << "held blocks are not evicted";
  connector_.Release({answers[0][0].block, answers[0][1].block, answers[0][2].block});
  engine_->TakeEvents();
  engine_->cache().CheckInvariant();
  EXPECT_EQ(engine_->stats().cache.held_blocks, 1);
  connector_.Release({answers[1][0].block});
  engine_->TakeEvents();
  ExpectNothingHeld();
  EXPECT_EQ(engine_->cache().Clear(), 3);
}

TEST_F(KvExchangeTest, AnEngineThatEndsTakesBackWhatTheConnectorHas) {
  Start(40);
  connector_.on_offer = [](const kv::SealedBlocks&) { return true; };
  RunOne(Greedy(RandomPrompt(rng_, 4 * kBlock + 5), 2));
  ClaimAlways({{1, 7}});
  const RequestId id = Submit(Greedy(RandomPrompt(rng_, 8 * kBlock + 5), 2));
  Step();
  engine_->Abort(id);
  engine_->Disconnect();
  EXPECT_FALSE(connector_.attached);
  ExpectNothingHeld();
  engine_->cache().CheckInvariant();
  ASSERT_TRUE(engine_->Connect(connector_, {}).has_value());
  ClaimAlways({{1, 7}});
  Submit(Greedy(RandomPrompt(rng_, 8 * kBlock + 5), 2));
  Step();
  engine_.reset();  // with a request that loads
  EXPECT_FALSE(connector_.attached);
  EXPECT_EQ(connector_.tickets.rbegin()->second.fate.reason, kv::CloseReason::kAborted);
}

// ---- The thread ----

TEST(KvExchangeLoop, TheConnectorWakesASleepingEngine) {
  FakeExecutor executor({});
  const SystemClock clock;
  FakeConnector connector;
  EngineOptions engine_options;
  engine_options.cache.num_blocks = 64;
  engine_options.max_answer_wait_us = 3'600'000'000;
  EngineLoopOptions options;
  options.connector = &connector;
  BoundedQueue<kv::TicketId> asked(10);
  BoundedQueue<kv::TicketId> loading(10);
  connector.on_ask = [&](Ticket& ticket) { asked.Push(ticket.request.ticket); };
  connector.on_claim = [](Ticket&, int32_t, std::span<const BlockRange> missing) {
    return std::vector<BlockRange>(missing.begin(), missing.end());
  };
  connector.on_yield = [&](Ticket& ticket, int32_t) {
    loading.Push(ticket.request.ticket);
    return kv::kUntilEvent;
  };
  EngineLoop loop(Engine::Create(engine_options, executor, clock).value(), std::move(options));
  Rng rng(1);
  const Request request = Greedy(RandomPrompt(rng, 5 * kBlock), 4);
  const auto outputs = std::make_shared<BoundedQueue<RequestOutput>>(100);
  ASSERT_TRUE(
      loop.Submit(request, [outputs](RequestOutput output) { outputs->Push(std::move(output)); })
          .has_value());
  // The engine sleeps in each of these, and an event from this thread wakes it.
  const kv::TicketId ticket = asked.Pop().value();
  connector.Push(kv::Answered{ticket});
  ASSERT_EQ(loading.Pop(), ticket);
  connector.Push(kv::NotComing{ticket, {0, 4}, kv::LoadEnd::kFailed});
  Received received;
  while (!received.finish) {
    received.Add(outputs->Pop().value());
  }
  EXPECT_EQ(received.tokens, Solo(request).tokens);
  // Without work, too.
  BoundedQueue<kv::WantId> wanted(10);
  ASSERT_TRUE(loop.RunOnEngineThread([&](Engine&) {
    connector.on_offer = [&](const kv::SealedBlocks& sealed) {
      wanted.Push(sealed.want);
      return false;
    };
  }));
  connector.Push(kv::Wanted{5, KeysOf(request.prompt), {}});
  EXPECT_EQ(wanted.Pop(), 5U);
  loop.Stop();
  EXPECT_FALSE(connector.attached);
}

TEST(KvExchangeLoop, ALoopThatDrainsEndsWhenTheConnectorEndsTheLastRequest) {
  FakeExecutor executor({});
  const SystemClock clock;
  FakeConnector connector;
  BoundedQueue<kv::TicketId> asked(10);
  connector.on_ask = [&](Ticket& ticket) { asked.Push(ticket.request.ticket); };
  EngineOptions engine_options;
  engine_options.cache.num_blocks = 64;
  engine_options.max_answer_wait_us = 3'600'000'000;
  EngineLoopOptions options;
  options.connector = &connector;
  EngineLoop loop(Engine::Create(engine_options, executor, clock).value(), std::move(options));
  Rng rng(1);
  const auto outputs = std::make_shared<BoundedQueue<RequestOutput>>(100);
  ASSERT_TRUE(loop.Submit(Greedy(RandomPrompt(rng, 5 * kBlock), 4),
                          [outputs](RequestOutput output) { outputs->Push(std::move(output)); })
                  .has_value());
  const kv::TicketId ticket = asked.Pop().value();
  loop.Drain();
  connector.Push(kv::Failed{ticket, Err(ErrorCode::kUnavailable, "peer gone")});
  EXPECT_EQ(outputs->Pop().value().finish, FinishReason::kError);
  loop.Join();
}

TEST(KvExchangeLoop, ARequestIsLetInWithoutAnAnswer) {
  FakeExecutor executor({});
  const SystemClock clock;
  FakeConnector connector;
  connector.on_ask = [](Ticket&) {};
  EngineOptions engine_options;
  engine_options.cache.num_blocks = 64;
  engine_options.max_answer_wait_us = 1'000;
  EngineLoopOptions options;
  options.connector = &connector;
  EngineLoop loop(Engine::Create(engine_options, executor, clock).value(), std::move(options));
  Rng rng(1);
  const Request request = Greedy(RandomPrompt(rng, 5 * kBlock), 4);
  const auto outputs = std::make_shared<BoundedQueue<RequestOutput>>(100);
  ASSERT_TRUE(
      loop.Submit(request, [outputs](RequestOutput output) { outputs->Push(std::move(output)); })
          .has_value());
  Received received;
  while (!received.finish) {
    received.Add(outputs->Pop().value());
  }
  EXPECT_EQ(received.tokens, Solo(request).tokens);
}

}  // namespace
}  // namespace kvik::engine
