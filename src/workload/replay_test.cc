// SPDX-License-Identifier: Apache-2.0
#include "workload/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kv/testing/each_policy.h"
#include "workload/offline_bound.h"
#include "workload/offline_policies.h"
#include "workload/plan_trace.h"
#include "workload/testing/random_trace.h"
#include "workload/token_load.h"

namespace kvik::workload {
namespace {

using testing::HasSubstr;

ReplayOptions Options(std::string_view policy, int32_t cache_blocks, double warmup_share = 0) {
  ReplayOptions options;
  options.policy.name = policy;
  options.policy.lifespan_s = 600;
  options.cache_blocks = cache_blocks;
  options.warmup_share = warmup_share;
  return options;
}

ReplayCell Outcome(const Trace& trace, const ReplayOptions& options) {
  return Replay(trace, options, ManualClock()).value();
}

Trace HandMade(const std::vector<std::pair<int32_t, std::vector<uint64_t>>>& requests) {
  Trace trace;
  trace.block_size_tokens = 10;
  for (const auto& [tokens, blocks] : requests) {
    TraceRequest request;
    request.arrival_us = static_cast<int64_t>(trace.requests.size()) * 1000000;
    request.input_tokens = tokens;
    request.blocks = blocks;
    trace.requests.push_back(request);
  }
  AnnotateSessions(trace);
  return trace;
}

TEST(Replay, CountsAsDoneByHand) {
  // A token costs 1 and, for each position before it, 0.1: blocks of 10 cost 15, 25, 35.
  const Trace trace = HandMade({
      {25, {1, 2}},     // all computed: 15 + 25 + tail of 5 at 20 (5 x (1 + 2.25)) = 56.25
      {35, {1, 2, 3}},  // 1 and 2 cached: 35 + tail of 5 at 30 (5 x 4.25) = 56.25 of 96.25
      {12, {4}},        // evicts 3, the deepest: 15 + tail of 2 at 10 (2 x 2.1) = 19.2
      {35, {1, 2, 3}},  // 1 and 2 cached again: 56.25 of 96.25
      {20, {1, 2}},     // 2 holds the last token and is computed: 25 of 40
  });
  ReplayOptions options = Options("lru", 3);
  options.policy.cost = kv::CostModel{.token_us = 1, .square_us = 0.05};
  const ReplayCell cell = Outcome(trace, options);
  EXPECT_EQ(cell.requests, 5);
  const double missed = 56.25 + 56.25 + 19.2 + 56.25 + 25;
  const double all = 56.25 + 96.25 + 19.2 + 96.25 + 40;
  EXPECT_NEAR(cell.miss_cost_pct, 100 * missed / all, 1e-9);
  EXPECT_NEAR(cell.block_hit_pct, 100.0 * 5 / 11, 1e-9);
  EXPECT_NEAR(cell.request_hit_pct, 60, 1e-9);
  EXPECT_NEAR(cell.segments_mean, 0.6, 1e-9);
  EXPECT_EQ(cell.evictions, 2);  // 3 for 4, then 4 for 3

  options.warmup_share = 0.2;  // the first request is not counted
  EXPECT_NEAR(Outcome(trace, options).miss_cost_pct, 100 * (missed - 56.25) / (all - 56.25), 1e-9);
}

TEST(Replay, AQueueMakesRequestsWaitAndTurnsFollowAnswers) {
  // 10 tokens a block, a second a token.
  Trace trace = HandMade({{20, {1, 2}}, {10, {9}}, {30, {1, 2, 3}}});
  for (TraceRequest& request : trace.requests) {
    request.arrival_us = 0;
  }
  trace.requests[2].session = trace.requests[0].session;
  trace.requests[2].gap_us = 25000000;  // after the end of the first answer, at 20 s
  ReplayOptions options = Options("lru", 100);
  options.policy.cost = kv::CostModel{.token_us = 1000000};
  options.queue = true;
  const ReplayCell cell = Outcome(trace, options);
  // 20 s alone; 10 s behind 20 s; at 45 s, with two blocks cached, 10 s.
  EXPECT_TRUE(cell.has_ttft);
  EXPECT_NEAR(cell.ttft_ms.mean, (20000 + 30000 + 10000) / 3.0, 1e-6);
  options.policy.name = "belady";
  EXPECT_EQ(Replay(trace, options, ManualClock()).error().code, ErrorCode::kUnsupported);
  trace.requests[2].gap_us = -1;
  EXPECT_TRUE(Replay(trace, options, ManualClock()).has_value());
}

// A tool call of one second, then another session, then the return of the first.
Trace ToolCallTrace() {
  Trace trace = HandMade({{25, {1, 2}}, {35, {5, 6, 7}}, {35, {8, 9, 10}}, {35, {1, 2, 3}}});
  const auto set = [&](size_t index, int64_t session, int64_t arrival_us) {
    trace.requests[index].session = session;
    trace.requests[index].arrival_us = arrival_us;
  };
  set(0, 0, 0);
  set(1, 1, 1'000'000);
  set(2, 2, 2'000'000);
  set(3, 0, 3'000'000);
  trace.requests[0].tool_call = true;
  trace.requests[0].tool = 7;
  trace.requests[3].turn = 2;
  return trace;
}

TEST(Replay, InAQueueARequestBackToPinnedKvGoesFirstAndJobsAreMeasured) {
  const Trace trace = ToolCallTrace();
  ReplayOptions options = Options("lru", 100);
  options.policy.cost = kv::CostModel{.token_us = 100'000};
  options.queue = true;
  std::vector<size_t> order;
  options.observe = [&](const RequestOutcome& outcome) { order.push_back(outcome.request); };
  const ReplayCell fifo = Outcome(trace, options);
  EXPECT_EQ(order, (std::vector<size_t>{0, 1, 2, 3}));
  // 0 to 2.5 s, 2.5 to 6 s, 6 to 9.5 s, and 15 tokens to 11 s.
  EXPECT_TRUE(fifo.has_job);
  EXPECT_NEAR(fifo.job_s.mean, (11 + (6 - 1) + (9.5 - 2)) / 3, 1e-6);
  order.clear();
  options.policy.name = "lru+continuum";
  const ReplayCell pinned = Outcome(trace, options);
  EXPECT_EQ(order, (std::vector<size_t>{0, 1, 3, 2}));
  EXPECT_NEAR(pinned.job_s.mean, (7.5 + (6 - 1) + (11 - 2)) / 3, 1e-6);

  Trace chat = trace;
  chat.requests[0].tool_call = false;
  EXPECT_FALSE(Outcome(chat, options).has_job);
}

TEST(Replay, TrueHintsAreWorthMoreThanNoneAndFalseOnesLess) {
  // Sessions of two turns half of which never come back, over a cache for a few of them.
  Trace trace;
  trace.block_size_tokens = 10;
  for (int64_t i = 0; i < 400; ++i) {
    TraceRequest request;
    request.arrival_us = i * 1'000'000;
    request.session = i % 2 == 0 ? i : i < 8 ? 1000 + i : i - 7;
    request.turn = i % 2 == 0 || i < 8 ? 1 : 2;
    request.input_tokens = 45;
    for (uint64_t b = 0; b < 4; ++b) {
      request.blocks.push_back(static_cast<uint64_t>(request.session) * 10 + b + 1);
    }
    if (request.session % 4 == 0 && request.turn == 2) {
      continue;
    }
    trace.requests.push_back(request);
  }
  ReplayOptions options = Options("lru", 14);
  const double none = Outcome(trace, options).miss_cost_pct;
  options.hint_accuracy = 1;
  const double right = Outcome(trace, options).miss_cost_pct;
  options.hint_accuracy = 0;
  const double wrong = Outcome(trace, options).miss_cost_pct;
  EXPECT_LT(right, none - 5);
  EXPECT_GT(wrong, right + 5);
}

TEST(Replay, WhatWasCachedOnceCanBeFetchedFromATierBelow) {
  // 1 and 2 are evicted by 4, 5, 6 and wanted again.
  const Trace trace = HandMade({{25, {1, 2}}, {35, {4, 5, 6}}, {25, {1, 2}}});
  ReplayOptions options = Options("lru", 3);
  options.policy.cost = kv::CostModel{.token_us = 1};
  EXPECT_NEAR(Outcome(trace, options).miss_cost_pct, 100, 1e-9);
  options.policy.tier = std::make_shared<kv::FixedTierCost>(
      kv::FixedTierCost::Numbers{.queue_us = 4, .bytes_per_s = 1e12});
  // Blocks of 10 us that are fetched in 4.
  EXPECT_NEAR(Outcome(trace, options).miss_cost_pct, 100 * (85 - 2 * 6) / 85.0, 1e-3);
}

TEST(Replay, ARequestLargerThanTheCacheIsComputedAndNotKept) {
  const Trace trace = HandMade({{12, {1}}, {45, {5, 6, 7, 8}}, {12, {1}}});
  const ReplayCell cell = Outcome(trace, Options("lru", 2));
  EXPECT_NEAR(cell.block_hit_pct, 100.0 / 6, 1e-9);
}

TEST(Replay, RefusesACacheOfNothingAndUnknownPolicies) {
  const Trace trace = HandMade({{12, {1}}});
  EXPECT_THAT(Replay(trace, Options("lru", 0), ManualClock()).error().message,
              HasSubstr("at least 1"));
  EXPECT_THAT(Replay(trace, Options("nonesuch", 5), ManualClock()).error().message,
              HasSubstr("belady"));
}

TEST(Replay, MeansAreOfTheCells) {
  ReplayCell a;
  a.miss_cost_pct = 10;
  a.requests = 5;
  ReplayCell b;
  b.miss_cost_pct = 30;
  b.requests = 6;
  const ReplayCell mean = MeanOf(std::vector{a, b});
  EXPECT_EQ(mean.miss_cost_pct, 20);
  EXPECT_EQ(mean.requests, 11);
  EXPECT_EQ(mean.repeats, 2);
}

TEST(OfflinePolicies, NothingOnlineBeatsThemNorTheyTheBound) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Trace trace = RandomTrace(seed, 200);
    const double warmup = seed % 2 == 0 ? 0.0 : 0.1;
    const int32_t blocks = 22 + static_cast<int32_t>(seed) * 2;
    const double lru_hits = Outcome(trace, Options("lru", blocks, warmup)).block_hit_pct;
    // With prefix hits and blocks of one size furthest-next-use is the best there is, but for the
    // measured part only when that is the whole.
    if (warmup == 0) {
      EXPECT_GE(Outcome(trace, Options("belady", blocks)).block_hit_pct, lru_hits - 1e-9);
    }
    const double bound = Outcome(trace, Options("bound", blocks, warmup)).miss_cost_pct;
    for (const auto& names : {kv::EvictionPolicyNames(), OfflinePolicyNames()}) {
      for (const std::string_view name : names) {
        EXPECT_GE(Outcome(trace, Options(name, blocks, warmup)).miss_cost_pct, bound - 1e-6)
            << name;
      }
    }
  }
}

TEST(OfflineBound, IsReachedWhenEverythingFits) {
  const Trace trace = RandomTrace(3, 100);
  EXPECT_NEAR(Outcome(trace, Options("bound", 100000)).miss_cost_pct,
              Outcome(trace, Options("belady-compute", 100000)).miss_cost_pct, 1e-6);
}

TEST(OfflineBound, IsTheOptimumWhereThatIsPlain) {
  // Room for one block besides the request's own: of 1 and 2, both wanted again, the dearer stays.
  const Trace trace = HandMade({{15, {1}}, {15, {2}}, {15, {3}}, {15, {2}}, {15, {1}}});
  const kv::CostModel cost{.token_us = 1};
  EXPECT_NEAR(SavingsBoundUs(trace, cost, 2, 0), 10, 0.2);
  EXPECT_NEAR(SavingsBoundUs(trace, cost, 3, 0), 20, 1e-6);
}

// Passes calls on and writes down every victim.
class Recorder final : public kv::EvictionPolicy {
 public:
  Recorder(std::unique_ptr<kv::EvictionPolicy> policy, std::vector<BlockId>& victims)
      : policy_(std::move(policy)), victims_(victims) {}
  [[nodiscard]] std::string_view name() const override { return policy_->name(); }
  void Track(const kv::TrackedBlock& block) override { policy_->Track(block); }
  void Hit(std::span<const BlockId> blocks, const kv::Access& access) override {
    policy_->Hit(blocks, access);
  }
  void Missed(std::span<const uint64_t> contents, const kv::Access& access) override {
    policy_->Missed(contents, access);
  }
  void Touch(std::span<const BlockId> blocks, const kv::Access& access) override {
    policy_->Touch(blocks, access);
  }
  void Release(std::span<const BlockId> blocks, const kv::Access& access) override {
    policy_->Release(blocks, access);
  }
  void Forget(BlockId block) override { policy_->Forget(block); }
  std::vector<BlockId> SelectVictims(size_t count, int64_t now_us) override {
    std::vector<BlockId> victims = policy_->SelectVictims(count, now_us);
    victims_.insert(victims_.end(), victims.begin(), victims.end());
    return victims;
  }
  void Tick(int64_t now_us) override { policy_->Tick(now_us); }
  [[nodiscard]] kv::HitScope hits() const override { return policy_->hits(); }
  [[nodiscard]] kv::PolicyStats stats() const override { return policy_->stats(); }

 private:
  std::unique_ptr<kv::EvictionPolicy> policy_;
  std::vector<BlockId>& victims_;
};

// Victims of the first `requests` requests.
std::vector<BlockId> VictimsOf(const Trace& trace, std::string_view policy, size_t requests) {
  std::vector<BlockId> victims;
  size_t until = 0;
  ReplayOptions options = Options(policy, 30);
  options.policy.lifespan_s = 0;  // learned, as it goes
  options.wrap = [&](std::unique_ptr<kv::EvictionPolicy> inner) {
    return std::make_unique<Recorder>(std::move(inner), victims);
  };
  options.observe = [&](const RequestOutcome& outcome) {
    if (outcome.request + 1 == requests) {
      until = victims.size();
    }
  };
  Outcome(trace, options);
  victims.resize(until);
  return victims;
}

class OnlinePolicy : public testing::TestWithParam<std::string_view> {};

TEST_P(OnlinePolicy, DoesNotKnowTheFuture) {
  constexpr size_t kHalf = 150;
  const Trace trace = RandomTrace(11, 2 * kHalf);
  Trace half = trace;
  half.requests.resize(kHalf);
  Trace shuffled = trace;
  Rng rng(5);
  for (size_t i = 2 * kHalf - 1; i > kHalf; --i) {
    TraceRequest& a = shuffled.requests[i];
    TraceRequest& b = shuffled.requests[kHalf + rng.Below(i - kHalf + 1)];
    std::swap(a, b);
    std::swap(a.arrival_us, b.arrival_us);
  }
  const std::vector<BlockId> victims = VictimsOf(trace, GetParam(), kHalf);
  EXPECT_GT(victims.size(), 100U);
  EXPECT_EQ(victims, VictimsOf(half, GetParam(), kHalf));
  EXPECT_EQ(victims, VictimsOf(shuffled, GetParam(), kHalf));
}

TEST_P(OnlinePolicy, GivesTheSameReplayTwice) {
  const Trace trace = RandomTrace(12, 300);
  EXPECT_EQ(VictimsOf(trace, GetParam(), 300), VictimsOf(trace, GetParam(), 300));
}

INSTANTIATE_TEST_SUITE_P(Policies, OnlinePolicy, kv::EachPolicy(), kv::PolicyTestName);

// What the causality test would see of one that does.
TEST(OfflinePolicies, KnowTheFuture) {
  constexpr size_t kHalf = 150;
  const Trace trace = RandomTrace(11, 2 * kHalf);
  Trace half = trace;
  half.requests.resize(kHalf);
  EXPECT_NE(VictimsOf(trace, "belady", kHalf), VictimsOf(half, "belady", kHalf));
}

// What was learned of the first half of a trace helps, or at least does not harm, in the second.
TEST(Replay, WhatAPolicyLearnedServesItInTheNextRun) {
  for (const char* policy : {"hazard", "asym"}) {
    double cold_pct = 0;
    double restored_pct = 0;
    for (uint64_t seed = 0; seed < 5; ++seed) {
      SCOPED_TRACE(testing::Message() << policy << ", seed " << seed);
      LongContextOptions load = LongContextNamed("longbench:10").value();
      load.scale = 8;
      load.seed = seed;
      const LoadPlan plan = PlanLongContext(load);
      std::vector<double> starts_s;
      for (const PlannedSession& session : plan.sessions) {
        starts_s.push_back(session.start_s);
      }
      Trace first = TraceOf(plan, starts_s, 64);
      Trace second = first;
      const auto half = static_cast<std::ptrdiff_t>(first.requests.size() / 2);
      first.requests.resize(static_cast<size_t>(half));
      second.requests.erase(second.requests.begin(), second.requests.begin() + half);

      ReplayOptions options;
      options.policy.name = policy;
      options.cache_blocks = 950;
      options.warmup_share = 0;
      cold_pct += Outcome(second, options).miss_cost_pct;
      std::string learned;
      options.at_end = [&](const kv::EvictionPolicy& p) { learned = p.SaveState(); };
      (void)Outcome(first, options);
      options.policy_state = learned;
      restored_pct += Outcome(second, options).miss_cost_pct;
    }
    EXPECT_LE(restored_pct, cold_pct) << policy;
  }
}

TEST(Replay, AStateThatIsNotThePolicysIsRefused) {
  ReplayOptions options = Options("lru", 3);
  options.policy_state = "{}";
  EXPECT_THAT(Replay(HandMade({{25, {1, 2}}}), options, ManualClock()).error().message,
              HasSubstr("learns nothing"));
}

}  // namespace
}  // namespace kvik::workload
