// SPDX-License-Identifier: Apache-2.0
#include "sched/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/rng.h"
#include "kv/testing/each_policy.h"
#include "kv/testing/fake_kv.h"

namespace kvik::sched {
namespace {

using kv::FakeKv;
using kv::TokenRun;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int32_t kBlock = 16;
constexpr int32_t kVocab = 1000;

std::vector<TokenId> RandomPrompt(Rng& rng, int32_t num_tokens) {
  std::vector<TokenId> tokens(static_cast<size_t>(num_tokens));
  for (TokenId& token : tokens) {
    token = static_cast<TokenId>(rng.Below(kVocab));
  }
  return tokens;
}

TokenId NextToken(uint64_t digest) { return static_cast<TokenId>(digest % kVocab); }

// What a request generates alone, with no cache and no scheduler.
std::vector<TokenId> Solo(std::vector<TokenId> tokens, int32_t max_new_tokens) {
  std::vector<TokenId> generated;
  for (int32_t i = 0; i < max_new_tokens; ++i) {
    generated.push_back(NextToken(FakeKv::ReferenceDigest(tokens)));
    tokens.push_back(generated.back());
  }
  return generated;
}

// A cache, a scheduler and a fake model, stepped by hand. Every step must make progress, leave the
// cache consistent and write into nothing but blocks that are being filled.
class Harness {
 public:
  explicit Harness(int32_t num_blocks, const SchedulerOptions& options = {},
                   const std::string& policy = "lru")
      : options_(options), kv_(num_blocks, kBlock) {
    kv::CacheOptions cache_options;
    cache_options.num_blocks = num_blocks;
    cache_options.block_size_tokens = kBlock;
    cache_options.policy.name = policy;
    cache_ = kv::KvCache::Create(cache_options).value();
    scheduler_ = std::make_unique<Scheduler>(options, *cache_);
  }

  RequestId Add(std::vector<TokenId> prompt, int32_t max_new_tokens, int32_t priority = 0,
                const std::string& salt = "") {
    const RequestId id = next_id_++;
    live_[id] = Live{prompt, max_new_tokens, {}};
    const auto added =
        scheduler_->Add(SchedRequest{id, priority, std::move(prompt), max_new_tokens, {"", salt}});
    EXPECT_TRUE(added.has_value());
    return id;
  }

  StepPlan Step() {
    cache_->AdvanceTime(steps_ * int64_t{50'000});
    StepPlan plan = scheduler_->Schedule();
    EXPECT_FALSE(plan.empty() && scheduler_->HasWork()) << "no progress";
    EXPECT_LE(plan.num_tokens, options_.max_num_batched_tokens);
    scheduler_->Allocate(plan);
    Execute(plan);
    scheduler_->Commit(plan);
    for (const ScheduledRequest& scheduled : plan.requests) {
      if (scheduled.last_token) {
        Sample(scheduled.id);
      }
    }
    cache_->CheckInvariant();
    ++steps_;
    return plan;
  }

  void RunToEnd(int max_steps = 100'000) {
    while (scheduler_->HasWork()) {
      ASSERT_GT(max_steps--, 0) << "does not end";
      Step();
      ASSERT_FALSE(testing::Test::HasFailure());
    }
  }

  // Removes a request in whatever state it is.
  void Abort(RequestId id) {
    scheduler_->Remove(id);
    live_.erase(id);
    cache_->CheckInvariant();
  }

  void ExpectSoloOutputs() const {
    for (const auto& [id, request] : done_) {
      EXPECT_EQ(request.generated, Solo(request.prompt, request.max_new_tokens))
          << "request " << id;
    }
  }

  [[nodiscard]] bool IsDone(RequestId id) const { return done_.contains(id); }
  [[nodiscard]] const std::vector<RequestId>& order_of_end() const { return order_of_end_; }
  [[nodiscard]] int64_t computed_tokens() const { return computed_tokens_; }
  [[nodiscard]] int steps() const { return steps_; }
  [[nodiscard]] const std::map<RequestId, CacheHits>& hits() const { return hits_; }
  Scheduler& scheduler() { return *scheduler_; }
  kv::KvCache& cache() { return *cache_; }

 private:
  struct Live {
    std::vector<TokenId> prompt;
    int32_t max_new_tokens = 0;
    std::vector<TokenId> generated;
  };

  void Execute(const StepPlan& plan) {
    std::map<BlockId, uint64_t> sealed;
    for (BlockId block = 0; block < cache_->pool().num_total(); ++block) {
      const auto state = cache_->pool().state(block);
      if (state == kv::BlockState::kReferenced || state == kv::BlockState::kCached) {
        sealed[block] = kv_.BlockChecksum(block);
      }
    }
    int32_t total = 0;
    for (const ScheduledRequest& scheduled : plan.requests) {
      const kv::Sequence& sequence = scheduler_->sequence(scheduled.id);
      for (const TokenRun& run : scheduled.runs) {
        for (int32_t pos = run.first_pos; pos < run.end_pos(); ++pos) {
          kv_.Write(sequence.block_table(), pos, sequence.tokens()[static_cast<size_t>(pos)]);
        }
        total += run.num_tokens;
      }
    }
    EXPECT_EQ(total, plan.num_tokens);
    computed_tokens_ += total;
    for (const auto& [block, checksum] : sealed) {
      EXPECT_EQ(kv_.BlockChecksum(block), checksum) << "sealed block " << block << " was rewritten";
    }
  }

  void Sample(RequestId id) {
    const kv::Sequence& sequence = scheduler_->sequence(id);
    Live& request = live_.at(id);
    request.generated.push_back(
        NextToken(kv_.Digest(sequence.block_table(), sequence.num_tokens() - 1)));
    hits_[id] = scheduler_->cache_hits(id);
    if (static_cast<int32_t>(request.generated.size()) == request.max_new_tokens) {
      order_of_end_.push_back(id);
      done_.insert(live_.extract(id));
      scheduler_->Remove(id);
    } else {
      scheduler_->Append(id, request.generated.back());
    }
  }

  SchedulerOptions options_;
  FakeKv kv_;
  std::unique_ptr<kv::KvCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  RequestId next_id_ = 1;
  std::map<RequestId, Live> live_;
  std::map<RequestId, Live> done_;
  std::map<RequestId, CacheHits> hits_;
  std::vector<RequestId> order_of_end_;
  int64_t computed_tokens_ = 0;
  int steps_ = 0;
};

SchedulerOptions Overcommit(int32_t reserve_new_tokens = 0) {
  SchedulerOptions options;
  options.reserve_new_tokens = reserve_new_tokens;
  return options;
}

// What holds whichever blocks are evicted.
class SchedulerUnderEachPolicy : public testing::TestWithParam<std::string_view> {
 protected:
  static std::string policy() { return std::string(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Policies, SchedulerUnderEachPolicy, kv::EachPolicy(), kv::PolicyTestName);

TEST(SchedulerOptions, WrongOnesAreNamed) {
  const auto message = [](auto change) {
    SchedulerOptions options;
    change(options);
    const auto result = ValidateSchedulerOptions(options);
    return result.has_value() ? std::string() : result.error().message;
  };
  EXPECT_EQ(message([](SchedulerOptions&) {}), "");
  EXPECT_THAT(message([](SchedulerOptions& o) { o.max_num_seqs = 0; }), HasSubstr("max_num_seqs"));
  EXPECT_THAT(message([](SchedulerOptions& o) { o.max_num_batched_tokens = 31; }),
              HasSubstr("max_num_batched_tokens"));
  EXPECT_THAT(message([](SchedulerOptions& o) { o.chunk_floor = 513; }), HasSubstr("chunk_floor"));
  EXPECT_THAT(message([](SchedulerOptions& o) { o.chunk_decode_threshold = 0; }),
              HasSubstr("chunk_decode_threshold"));
  EXPECT_THAT(message([](SchedulerOptions& o) { o.reserve_new_tokens = -1; }),
              HasSubstr("reserve_new_tokens"));
}

TEST(PrefillBudget, ShrinksFromTheThresholdDownToTheFloor) {
  const SchedulerOptions options;  // 2048, 512, 64, threshold 4
  EXPECT_EQ(PrefillBudget(options, 0), 2048);
  EXPECT_EQ(PrefillBudget(options, 1), 512);
  EXPECT_EQ(PrefillBudget(options, 4), 512);
  EXPECT_EQ(PrefillBudget(options, 8), 256);
  EXPECT_EQ(PrefillBudget(options, 32), 64);
  SchedulerOptions tight;
  tight.max_num_batched_tokens = 40;
  EXPECT_EQ(PrefillBudget(tight, 32), 8);
}

TEST(Scheduler, DecodesComeFirstAndPrefillFillsTheRest) {
  Rng rng(1);
  Harness h(100);
  const RequestId a = h.Add(RandomPrompt(rng, 20), 10);
  h.Step();
  const RequestId b = h.Add(RandomPrompt(rng, 700), 10);
  const RequestId c = h.Add(RandomPrompt(rng, 30), 10);
  const StepPlan plan = h.Step();
  ASSERT_EQ(plan.requests.size(), 2U);  // with a decode the step takes chunk_max prefill tokens
  EXPECT_EQ(plan.requests[0].id, a);
  EXPECT_EQ(plan.requests[0].num_tokens, 1);
  EXPECT_EQ(plan.requests[1].id, b);
  EXPECT_EQ(plan.requests[1].num_tokens, 512);
  EXPECT_FALSE(plan.requests[1].last_token);
  EXPECT_EQ(plan.wait_reason, WaitReason::kBudget);
  const StepPlan next = h.Step();
  ASSERT_EQ(next.requests.size(), 3U);
  EXPECT_EQ(next.requests[1].num_tokens, 188);
  EXPECT_TRUE(next.requests[1].last_token);
  EXPECT_EQ(next.requests[2].id, c);
  h.RunToEnd();
  h.ExpectSoloOutputs();
}

// Per step 500 us, a token 100 us, a decode 300 us, and a little for positions.
SchedulerOptions WithSlo(int64_t tpot_slo_us) {
  SchedulerOptions options;
  options.tpot_slo_us = tpot_slo_us;
  options.cost = {.step_us = 500, .token_us = 100, .square_us = 0.01, .decode_us = 300};
  return options;
}

TEST(Scheduler, TheSloBoundsPrefillBesideDecodesAndTakesAllItAllows) {
  const SchedulerOptions options = WithSlo(20'000);
  Harness h(400, options);
  Rng rng(1);
  h.Add(RandomPrompt(rng, 30), 60);
  h.Step();  // from now on it decodes
  h.Add(RandomPrompt(rng, 900), 3);
  h.Add(RandomPrompt(rng, 500), 3);
  int mixed = 0;
  while (h.scheduler().HasWork()) {
    const StepPlan plan = h.Step();
    const int32_t prefill = plan.num_tokens - plan.num_decodes;
    if (plan.num_decodes == 0 || prefill == 0) {
      continue;
    }
    ++mixed;
    const double step_us = options.cost.StepUs(plan.features);
    EXPECT_LE(step_us, 20'000);
    const ScheduledRequest& last = plan.requests.back();
    if (!last.last_token) {  // one token more would have been too many
      kv::StepFeatures more = plan.features;
      more.AddSegment(last.runs.back().end_pos(), 1);
      EXPECT_GT(options.cost.StepUs(more) - options.cost.segment_us, 20'000);
    }
  }
  EXPECT_GT(mixed, 5);
  h.ExpectSoloOutputs();
}

TEST(Scheduler, AnSloThatDecodesAloneBreakStillMakesProgress) {
  Harness h(400, WithSlo(700));
  Rng rng(2);
  for (int i = 0; i < 4; ++i) {
    h.Add(RandomPrompt(rng, 20), 100);
  }
  h.Step();
  const RequestId late = h.Add(RandomPrompt(rng, 200), 2);
  int32_t most = 0;
  while (!h.IsDone(late)) {
    const StepPlan plan = h.Step();
    most = std::max(most, plan.num_tokens - plan.num_decodes);
  }
  EXPECT_EQ(most, kMinChunkTokens);
  h.RunToEnd();
  h.ExpectSoloOutputs();
}

TEST(Scheduler, WithoutDecodesTheSloDoesNotMatter) {
  Harness h(400, WithSlo(700));
  Rng rng(3);
  h.Add(RandomPrompt(rng, 512), 1);
  EXPECT_EQ(h.Step().num_tokens, 512);
}

TEST(Scheduler, CachedTokensBetweenTheRunsOfAChunkCostNoBudget) {
  Rng rng(2);
  SchedulerOptions options;
  options.chunk_max = options.chunk_floor = 40;
  Harness h(100, options);
  const auto prompt = RandomPrompt(rng, 10 * kBlock);
  h.Add(prompt, 1);
  h.RunToEnd();
  kv::Sequence probe(prompt, {}, kBlock);
  const auto blocks = h.cache().Plan(probe, probe.num_tokens()).hits.blocks;
  ASSERT_EQ(blocks.size(), 9U);
  for (const size_t gap : {1, 4, 5}) {
    h.cache().Evict(blocks[gap]);
  }
  const RequestId again = h.Add(prompt, 1);
  const StepPlan plan = h.Step();
  EXPECT_EQ(plan.num_tokens, 40);
  EXPECT_THAT(plan.requests[0].runs,
              ElementsAre(TokenRun{kBlock, kBlock}, TokenRun{4 * kBlock, 24}));
  h.RunToEnd();
  h.ExpectSoloOutputs();
  EXPECT_EQ(h.hits().at(again).cached_tokens, 6 * kBlock);
  EXPECT_EQ(h.hits().at(again).prefix_tokens, kBlock);
  EXPECT_EQ(h.hits().at(again).segments, 3);
}

TEST_P(SchedulerUnderEachPolicy, TheLastPromptTokenIsAlwaysComputed) {
  Rng rng(3);
  for (const int32_t length : {3 * kBlock - 1, 3 * kBlock, 3 * kBlock + 1}) {
    Harness h(50, {}, policy());
    const auto prompt = RandomPrompt(rng, length);
    for (int repeat = 0; repeat < 5; ++repeat) {
      h.Add(prompt, 3);
      h.RunToEnd();
    }
    h.ExpectSoloOutputs();
    for (const auto& [id, hits] : h.hits()) {
      EXPECT_EQ(hits.cached_tokens, id == 1 ? 0 : (length - 1) / kBlock * kBlock);
    }
  }
}

TEST(Scheduler, ARequestThatCanNeverFitFailsAtOnceAndBlocksNobody) {
  Rng rng(4);
  Harness h(10);
  const auto result = h.scheduler().Add(SchedRequest{99, 0, RandomPrompt(rng, 200), 1, {}});
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidInput);
  EXPECT_THAT(result.error().message, HasSubstr("200 tokens"));
  EXPECT_THAT(result.error().message, HasSubstr("10 blocks of 16"));
  h.Add(RandomPrompt(rng, 100), 5);
  h.RunToEnd();
  h.ExpectSoloOutputs();
}

TEST_P(SchedulerUnderEachPolicy, APromptThatFillsThePoolRuns) {
  Rng rng(5);
  Harness h(10, {}, policy());
  h.Add(RandomPrompt(rng, 10 * kBlock - 5), 5);
  h.RunToEnd();
  h.ExpectSoloOutputs();
}

TEST_P(SchedulerUnderEachPolicy, TwoPromptsOfWhichOneAndAHalfFitBothFinishWithoutRepeatingWork) {
  for (const int32_t reserve : {0, std::numeric_limits<int32_t>::max()}) {
    Rng rng(6);
    Harness h(30, Overcommit(reserve), policy());
    h.Add(RandomPrompt(rng, 20 * kBlock), 10);
    h.Add(RandomPrompt(rng, 20 * kBlock), 10);
    h.RunToEnd();
    h.ExpectSoloOutputs();
    EXPECT_EQ(h.scheduler().stats().preemptions, 0);
    EXPECT_EQ(h.computed_tokens(), 2 * (20 * kBlock + 9));
  }
}

TEST_P(SchedulerUnderEachPolicy, ReservingTheWholeNeedNeverPreempts) {
  Rng rng(7);
  Harness h(20, {}, policy());
  for (int i = 0; i < 8; ++i) {
    h.Add(RandomPrompt(rng, 20), 200);
  }
  h.RunToEnd();
  h.ExpectSoloOutputs();
  EXPECT_EQ(h.scheduler().stats().preemptions, 0);
}

TEST_P(SchedulerUnderEachPolicy, EightGenerationsInATinyPoolArePreemptedAndSayWhatTheySaySolo) {
  Rng rng(8);
  Harness h(20, Overcommit(), policy());  // each needs 14 blocks in the end
  for (int i = 0; i < 8; ++i) {
    h.Add(RandomPrompt(rng, 20), 200);
  }
  h.RunToEnd();
  h.ExpectSoloOutputs();
  EXPECT_GT(h.scheduler().stats().preemptions, 0);
  EXPECT_GT(h.scheduler().stats().recomputed_tokens, 0);
  EXPECT_EQ(h.order_of_end().front(), 1U) << "the most important request is never preempted";
}

TEST(Scheduler, APreemptedRequestResumesFromItsCachedBlocks) {
  Rng rng(9);
  Harness h(40, Overcommit());
  const RequestId low = h.Add(RandomPrompt(rng, 10 * kBlock), 20, 1);
  h.Step();
  h.Add(RandomPrompt(rng, 35 * kBlock), 1, 0);  // 10 + 35 blocks do not fit
  const StepPlan plan = h.Step();
  EXPECT_THAT(plan.preempted, ElementsAre(low));
  h.RunToEnd();
  h.ExpectSoloOutputs();
  // 30 of the 40 blocks held what came in between, so some of the first ten are still there.
  EXPECT_LT(h.scheduler().stats().recomputed_tokens, 10 * kBlock);
  EXPECT_EQ(h.scheduler().stats().preemptions, 1);
}

TEST_P(SchedulerUnderEachPolicy, BetterPriorityRunsFirstAndPreemptsOnlyIfThatHelps) {
  Rng rng(10);
  Harness h(30, {}, policy());
  const RequestId urgent_holder = h.Add(RandomPrompt(rng, 20 * kBlock), 30, 0);
  const RequestId low = h.Add(RandomPrompt(rng, 4 * kBlock), 30, 5);
  h.Step();
  // Even without `low` this one does not fit beside urgent_holder.
  const RequestId big = h.Add(RandomPrompt(rng, 12 * kBlock), 1, 1);
  const StepPlan plan = h.Step();
  EXPECT_THAT(plan.preempted, IsEmpty());
  EXPECT_EQ(plan.wait_reason, WaitReason::kCapacity);
  EXPECT_EQ(h.scheduler().stats().waiting_for_capacity, 1);
  h.RunToEnd();
  h.ExpectSoloOutputs();
  EXPECT_THAT(h.order_of_end(), testing::Contains(big));
  EXPECT_TRUE(h.IsDone(urgent_holder) && h.IsDone(low));
}

TEST(Scheduler, EqualPriorityNeverPreemptsForAdmission) {
  Rng rng(11);
  Harness h(20);
  h.Add(RandomPrompt(rng, 15 * kBlock), 5);
  h.Step();
  h.Add(RandomPrompt(rng, 15 * kBlock), 5);
  h.RunToEnd();
  EXPECT_EQ(h.scheduler().stats().preemptions, 0);
  EXPECT_THAT(h.order_of_end(), ElementsAre(1, 2));
}

TEST(Scheduler, WaitingRequestsAreAdmittedByPriorityThenArrival) {
  Rng rng(12);
  SchedulerOptions options;
  options.max_num_seqs = 1;
  Harness h(50, options);
  h.Add(RandomPrompt(rng, 5), 2, 3);
  h.Add(RandomPrompt(rng, 5), 2, 1);
  h.Add(RandomPrompt(rng, 5), 2, 2);
  h.Add(RandomPrompt(rng, 5), 2, 1);
  EXPECT_EQ(h.Step().wait_reason, WaitReason::kSeqs);
  h.RunToEnd();
  EXPECT_THAT(h.order_of_end(), ElementsAre(2, 4, 3, 1));
}

// Most of them wait for room, looked up again and again; others are preempted by more important
// ones and then find what they computed before.
TEST_P(SchedulerUnderEachPolicy, HitsAreCountedOncePerRequestWhateverTheRetries) {
  Rng rng(13);
  Harness h(30, Overcommit(), policy());
  int64_t prompt_tokens = 0;
  for (int i = 0; i < 20; ++i) {
    const int32_t priority = i % 5 == 4 ? -1 : 0;
    h.Add(RandomPrompt(rng, 20 * kBlock), 40, priority);  // the pool holds one and a half of them
    prompt_tokens += 20 * kBlock;
    h.Step();
    h.Step();
  }
  h.RunToEnd();
  h.ExpectSoloOutputs();
  EXPECT_GT(h.scheduler().stats().preemptions, 0);
  EXPECT_EQ(h.scheduler().stats().prefix_query_tokens, prompt_tokens);
  EXPECT_EQ(h.scheduler().stats().prefix_hit_tokens, 0);
}

TEST_P(SchedulerUnderEachPolicy, AHitThatVanishesWhileWaitingIsPlannedAgain) {
  Rng rng(14);
  Harness h(12, {}, policy());
  const auto prompt = RandomPrompt(rng, 5 * kBlock);
  h.Add(prompt, 1);
  h.RunToEnd();  // five cached blocks
  h.Add(RandomPrompt(rng, 6 * kBlock), 10);
  h.Step();
  const RequestId again = h.Add(prompt, 30);
  EXPECT_EQ(h.Step().wait_reason, WaitReason::kCapacity);  // looked up, and has to wait
  ASSERT_GT(h.cache().Clear(), 0);
  h.RunToEnd();
  h.ExpectSoloOutputs();
  EXPECT_EQ(h.hits().at(again).cached_tokens, 0);
}

TEST_P(SchedulerUnderEachPolicy, TwoRequestsThatFillTheSameGapAtOnceAreBothRight) {
  Rng rng(15);
  Harness h(60, {}, policy());
  const auto prompt = RandomPrompt(rng, 6 * kBlock);
  h.Add(prompt, 1);
  h.RunToEnd();
  (void)h.cache().EvictAtRandom(rng, 0.5);
  const int32_t before = h.cache().pool().num_cached();
  h.Add(prompt, 4);
  h.Add(prompt, 4);
  h.RunToEnd();
  h.ExpectSoloOutputs();
  EXPECT_GT(h.cache().stats().duplicates, 0);
  EXPECT_EQ(h.cache().pool().num_cached() - before,
            6 - before);  // every block of the prompt once, none twice
}

TEST_P(SchedulerUnderEachPolicy, DifferentSaltsShareNothing) {
  Rng rng(16);
  Harness h(300, {}, policy());
  const auto prompt = RandomPrompt(rng, 100 * kBlock);
  const RequestId a1 = h.Add(prompt, 1, 0, "A");
  h.RunToEnd();
  const RequestId b = h.Add(prompt, 1, 0, "B");
  h.RunToEnd();
  const RequestId a2 = h.Add(prompt, 1, 0, "A");
  h.RunToEnd();
  EXPECT_EQ(h.hits().at(a1).cached_tokens, 0);
  EXPECT_EQ(h.hits().at(b).cached_tokens, 0);
  EXPECT_EQ(h.hits().at(a2).cached_tokens, 99 * kBlock);
  h.ExpectSoloOutputs();
}

TEST_P(SchedulerUnderEachPolicy, RequestsRemovedAtRandomTimesGiveEverythingBack) {
  Rng rng(17);
  SchedulerOptions options = Overcommit(8);
  options.chunk_max = options.chunk_floor = 20;  // so that some are removed in the middle
  Harness h(24, options, policy());
  std::vector<RequestId> ids;
  const auto shared = RandomPrompt(rng, 6 * kBlock);
  for (int i = 0; i < 200; ++i) {
    auto prompt = rng.Below(2) == 0 ? shared : RandomPrompt(rng, 6 * kBlock);
    prompt.resize(rng.Below(prompt.size()) + 1);
    ids.push_back(
        h.Add(prompt, static_cast<int32_t>(rng.Range(1, 60)), static_cast<int32_t>(rng.Below(3))));
    if (rng.Below(2) == 0) {
      h.Step();
    }
    // Mostly one of the last, which wait or have begun.
    const RequestId victim = ids[ids.size() - 1 - rng.Below(std::min<size_t>(ids.size(), 8))];
    if (!h.IsDone(victim) && rng.Below(2) == 0) {
      h.Abort(victim);
    }
  }
  for (const RequestId id : ids) {
    if (!h.IsDone(id)) {
      h.Abort(id);
    }
  }
  EXPECT_FALSE(h.scheduler().HasWork());
  h.ExpectSoloOutputs();
  EXPECT_EQ(h.cache().pool().num_free() + h.cache().pool().num_cached(), 24);
  EXPECT_EQ(h.cache().AvailableBlocks(), 24);
}

// Whatever the pool, the options, the policy, the arrivals, evictions and aborts: every step makes
// progress, no sealed block changes, and every request says what it says alone.
TEST_P(SchedulerUnderEachPolicy, RandomLoadsAlwaysFinishWithSoloOutputs) {
  int64_t preemptions = 0;
  int64_t gaps = 0;
  bool uses_gaps = false;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed, 1);
    SchedulerOptions options;
    options.max_num_seqs = static_cast<int32_t>(rng.Range(1, 8));
    options.max_num_batched_tokens = options.max_num_seqs + static_cast<int32_t>(rng.Below(100));
    options.chunk_max = static_cast<int32_t>(rng.Range(1, 60));
    options.chunk_floor = static_cast<int32_t>(rng.Range(1, options.chunk_max));
    options.chunk_decode_threshold = static_cast<int32_t>(rng.Range(1, 5));
    options.reserve_new_tokens = rng.Below(3) == 0 ? std::numeric_limits<int32_t>::max()
                                                   : static_cast<int32_t>(rng.Below(20));
    const auto num_blocks = static_cast<int32_t>(rng.Range(9, 40));
    Harness h(num_blocks, options, policy());
    std::vector<std::vector<TokenId>> stems;
    for (int i = 0; i < 3; ++i) {
      stems.push_back(RandomPrompt(rng, 5 * kBlock));
    }
    for (int step = 0; step < 60; ++step) {
      if (rng.Below(2) == 0) {
        auto prompt = stems[rng.Below(stems.size())];
        prompt.resize(rng.Below(prompt.size()) + 1);
        const auto tail = RandomPrompt(rng, static_cast<int32_t>(rng.Below(20)));
        prompt.insert(prompt.end(), tail.begin(), tail.end());
        h.Add(prompt, static_cast<int32_t>(rng.Range(1, 40)), static_cast<int32_t>(rng.Below(3)));
      }
      if (rng.Below(3) == 0) {
        (void)h.cache().EvictAtRandom(rng, 0.15);
      }
      if (h.scheduler().HasWork()) {
        h.Step();
      }
      ASSERT_FALSE(HasFailure());
    }
    ASSERT_NO_FATAL_FAILURE(h.RunToEnd());
    h.ExpectSoloOutputs();
    ASSERT_FALSE(HasFailure());
    ASSERT_EQ(h.cache().AvailableBlocks(), num_blocks);
    uses_gaps = h.cache().policy().hits() == kv::HitScope::kGaps;
    preemptions += h.scheduler().stats().preemptions;
    for (const auto& [id, hits] : h.hits()) {
      gaps += hits.segments >= 2 ? 1 : 0;
    }
  }
  EXPECT_GT(preemptions, 10);
  EXPECT_TRUE(gaps > 5 || !uses_gaps);
}

// Sessions whose first request called a tool and has ended; what comes back extends it.
std::vector<std::vector<TokenId>> PinnedSessions(Harness& h, Rng& rng, int count) {
  std::vector<std::vector<TokenId>> prompts;
  for (int i = 0; i < count; ++i) {
    std::vector<TokenId> prompt = RandomPrompt(rng, 2 * kBlock);
    h.scheduler().NoteToolCall(h.Add(prompt, 4));
    h.RunToEnd();
    const std::vector<TokenId> answer = Solo(prompt, 4);
    prompt.insert(prompt.end(), answer.begin(), answer.end());
    prompt.push_back(1);
    prompts.push_back(std::move(prompt));
  }
  EXPECT_EQ(h.cache().policy().stats().pinned, 2 * count);
  return prompts;
}

TEST(SchedulerPins, ARequestWhoseKvIsPinnedGoesFirstAmongEquals) {
  Rng rng(3);
  SchedulerOptions options;
  options.max_num_seqs = 1;
  Harness h(128, options, "lru+continuum");
  const auto pinned = PinnedSessions(h, rng, 1);
  const RequestId running = h.Add(RandomPrompt(rng, 20), 3);
  h.Step();
  const RequestId first = h.Add(RandomPrompt(rng, 20), 3);
  const RequestId better = h.Add(RandomPrompt(rng, 20), 3, /*priority=*/-1);
  const RequestId back = h.Add(pinned[0], 3);
  h.RunToEnd();
  const auto& order = h.order_of_end();
  EXPECT_EQ(std::vector<RequestId>(order.begin() + 1, order.end()),
            (std::vector<RequestId>{better, back, running, first}));
  EXPECT_EQ(h.scheduler().stats().overtakes, 1);
  h.ExpectSoloOutputs();
}

TEST(SchedulerPins, NobodyIsPassedOverMoreOftenThanTheBound) {
  Rng rng(4);
  SchedulerOptions options;
  options.max_num_seqs = 1;
  Harness h(256, options, "lru+continuum");
  const auto pinned = PinnedSessions(h, rng, kMaxOvertakes + 5);
  const RequestId running = h.Add(RandomPrompt(rng, 20), 3);
  h.Step();
  const RequestId first = h.Add(RandomPrompt(rng, 20), 3);
  const RequestId second = h.Add(RandomPrompt(rng, 20), 3);
  for (const auto& prompt : pinned) {
    h.Add(prompt, 3);
  }
  h.RunToEnd();
  const auto& order = h.order_of_end();
  const auto place = [&](RequestId id) {
    return std::find(order.begin(), order.end(), id) - order.begin();
  };
  EXPECT_EQ(place(first) - place(running), kMaxOvertakes + 1);
  EXPECT_EQ(place(second) - place(first), 5 + 1);
  h.ExpectSoloOutputs();
}

TEST(SchedulerPins, WithoutThemTheOrderIsThatOfArrival) {
  Rng rng(5);
  SchedulerOptions options;
  options.max_num_seqs = 1;
  Harness h(128, options, "lru+continuum");
  const std::vector<TokenId> prompt = RandomPrompt(rng, 2 * kBlock + 1);
  h.Add(prompt, 1);  // calls no tool
  h.RunToEnd();
  const RequestId first = h.Add(RandomPrompt(rng, 20), 3);
  const RequestId second = h.Add(prompt, 3);
  h.RunToEnd();
  EXPECT_EQ(h.order_of_end()[1], first);
  EXPECT_EQ(h.order_of_end()[2], second);
  EXPECT_EQ(h.scheduler().stats().overtakes, 0);
}

}  // namespace
}  // namespace kvik::sched
