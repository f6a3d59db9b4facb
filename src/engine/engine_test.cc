// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <string>

#include "base/rng.h"
#include "engine/testing/engine_fixture.h"
#include "engine/testing/fake_executor.h"
#include "engine/testing/requests.h"
#include "kv/testing/each_policy.h"

namespace kvik::engine {
namespace {

using testing::HasSubstr;

class EngineTest : public EngineFixture {
 protected:
  void Start(int32_t num_blocks, const std::function<void(EngineOptions&)>& change = {}) {
    StartEngine(num_blocks, change);
  }
};

// What holds whichever blocks are evicted.
class EngineUnderEachPolicy : public EngineTest,
                              public testing::WithParamInterface<std::string_view> {
 protected:
  void SetUp() override { policy_ = GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Policies, EngineUnderEachPolicy, kv::EachPolicy(), kv::PolicyTestName);

TEST_F(EngineTest, CreateNamesTheOptionThatDoesNotFitTheModel) {
  FakeExecutorOptions fake;
  fake.limits.max_batch_rows = 512;
  fake.limits.max_logit_rows = 16;
  FakeExecutor executor(fake);
  EngineOptions options;
  options.cache.num_blocks = 64;
  options.scheduler.max_num_batched_tokens = 513;
  EXPECT_THAT(Engine::Create(options, executor, clock_).error().message,
              HasSubstr("max_num_batched_tokens is 513"));
  options.scheduler.max_num_batched_tokens = 512;
  options.scheduler.max_num_seqs = 17;
  EXPECT_THAT(Engine::Create(options, executor, clock_).error().message,
              HasSubstr("max_num_seqs is 17"));
  options.scheduler.max_num_seqs = 16;
  options.max_model_len = 5000;
  EXPECT_THAT(Engine::Create(options, executor, clock_).error().message,
              HasSubstr("max_model_len is 5000"));
  options.max_model_len = 0;
  options.cache.policy.name = "?";
  EXPECT_EQ(Engine::Create(options, executor, clock_).error().code, ErrorCode::kInvalidInput);
  options.cache.policy.name = "lru";
  EXPECT_TRUE(Engine::Create(options, executor, clock_).has_value());
}

TEST_P(EngineUnderEachPolicy, FirstAndRepeatedRunsOfAPromptAreEqualAtBlockBorders) {
  Rng rng(1);
  for (const bool caching : {true, false}) {
    for (const int32_t length : {4 * kBlock - 1, 4 * kBlock, 4 * kBlock + 1}) {
      Start(64, [&](EngineOptions& o) { o.cache.prefix_caching = caching; });
      const Request request = Greedy(RandomPrompt(rng, length), 12);
      for (int repeat = 0; repeat < 5; ++repeat) {
        const Received got = RunOne(request);
        EXPECT_EQ(got.usage.cached_tokens,
                  caching && repeat > 0 ? (length - 1) / kBlock * kBlock : 0);
      }
      ExpectSoloOutputs();
    }
  }
}

TEST_P(EngineUnderEachPolicy, ARequestThatEndedOnAStopTokenLeavesNoTraceInLaterOutputs) {
  Rng rng(2);
  Start(64);
  Request first = Greedy(RandomPrompt(rng, 40), 30);
  const Received whole = Solo(first);
  first.stop_token_ids = {whole.tokens[9]};  // ends in the middle of a block
  const Received stopped = RunOne(first);
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  EXPECT_LE(stopped.tokens.size(), 10U);
  // The second prompt goes on where the first one stopped.
  Request second = Greedy(first.prompt, 30);
  second.prompt.insert(second.prompt.end(), stopped.tokens.begin(), stopped.tokens.end());
  const Received warm = RunOne(second);
  EXPECT_GT(warm.usage.cached_tokens, 0);
  ExpectSoloOutputs();
}

TEST_P(EngineUnderEachPolicy, PreemptedGenerationsConcatenateToTheSoloText) {
  Rng rng(3);
  Start(20, [](EngineOptions& o) { o.scheduler.reserve_new_tokens = 0; });
  for (int i = 0; i < 8; ++i) {
    Submit(Greedy(RandomPrompt(rng, 20), 200));
  }
  Run();
  ExpectSoloOutputs();
  int32_t preemptions = 0;
  for (const auto& [id, got] : received_) {
    EXPECT_EQ(got.finish, FinishReason::kLength);
    EXPECT_EQ(got.usage.completion_tokens, 200);
    EXPECT_EQ(got.tokens.size(), 200U);
    preemptions += got.usage.preemptions;
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_EQ(engine_->stats().scheduler.preemptions, preemptions);
  ExpectNothingHeld();
}

TEST_F(EngineTest, SampledOutputsDependOnTheSeedAndNotOnTheBatch) {
  Rng rng(4);
  Start(60);
  for (int i = 0; i < 6; ++i) {
    Request request = Greedy(RandomPrompt(rng, 30), 40);
    request.sampling.temperature = 1.2F;
    request.sampling.top_p = 0.9F;
    request.sampling.repetition_penalty = 1.1F;
    request.sampling.frequency_penalty = 0.5F;
    request.sampling.seed = static_cast<uint64_t>(i);
    request.sampling.num_logprobs = 3;
    Submit(request);
  }
  Run();
  ExpectSoloOutputs();
  EXPECT_GT(*std::max_element(rows_.begin(), rows_.end()), 6);
}

TEST_F(EngineTest, RequestsWithoutASeedDifferAndRepeatWithTheEngine) {
  Rng rng(5);
  const auto prompt = RandomPrompt(rng, 20);
  std::vector<std::vector<TokenId>> texts;
  for (int run = 0; run < 2; ++run) {
    Start(60);
    Request request = Greedy(prompt, 20);
    request.sampling.temperature = 2.0F;
    texts.push_back(RunOne(request).tokens);
    texts.push_back(RunOne(request).tokens);
  }
  EXPECT_NE(texts[0], texts[1]);
  EXPECT_EQ(texts[0], texts[2]);
  EXPECT_EQ(texts[1], texts[3]);
}

TEST_F(EngineTest, StopTokensAreHeldOffUntilMinNewTokens) {
  Rng rng(6);
  Start(60);
  Request request = Greedy(RandomPrompt(rng, 20), 50);
  const Received plain = RunOne(request);
  request.stop_token_ids = {plain.tokens[2]};
  const Received stopped = RunOne(request);
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  EXPECT_EQ(stopped.tokens.back(), plain.tokens[2]);
  request.min_new_tokens = 10;
  const Received later = RunOne(request);
  EXPECT_GE(later.tokens.size(), 10U);
  EXPECT_EQ(std::count(later.tokens.begin(), later.tokens.begin() + 10, plain.tokens[2]), 0);
  ExpectSoloOutputs();
  request.ignore_stop_tokens = true;
  const Received ignored = RunOne(request);
  EXPECT_EQ(ignored.tokens, plain.tokens);
  EXPECT_EQ(ignored.finish, FinishReason::kLength);
}

TEST_F(EngineTest, ForcedTokensReplaceSampledOnesAndWhatFollowsIsAsIfTheModelHadSaidThem) {
  Start(64);
  Rng rng(3);
  Request request = Greedy(RandomPrompt(rng, 40), 9);
  request.sampling.num_logprobs = 2;
  request.forced_tokens = {5, 5, 90, 0, 17};
  const RequestId id = Submit(request);
  Run();
  // The same text as a prompt, continued.
  Request rest = Greedy(request.prompt, 4);
  rest.prompt.insert(rest.prompt.end(), request.forced_tokens.begin(), request.forced_tokens.end());
  rest.sampling.num_logprobs = 2;
  const Received want = Solo(rest);
  const Received& got = received_.at(id);
  ASSERT_EQ(got.tokens.size(), 9U);
  EXPECT_TRUE(
      std::equal(request.forced_tokens.begin(), request.forced_tokens.end(), got.tokens.begin()));
  EXPECT_TRUE(std::equal(want.tokens.begin(), want.tokens.end(), got.tokens.begin() + 5));
  EXPECT_TRUE(std::equal(want.logprobs.begin(), want.logprobs.end(), got.logprobs.begin() + 5));
  // Log-probabilities are the model's, of the forced token.
  model::Sampler sampler(kVocab);
  EXPECT_EQ(got.logprobs[0],
            sampler.Score(FakeExecutor::ReferenceLogits(request.prompt, kVocab), 5, 2).logprob);

  request.forced_tokens.assign(10, 1);
  EXPECT_NE(engine_->Validate(request).error().message.find("forced"), std::string::npos);
  request.forced_tokens = {kVocab};
  EXPECT_NE(engine_->Validate(request).error().message.find("forced"), std::string::npos);
}

TEST_F(EngineTest, AnAnswerWithAMarkerCountsAsAToolCall) {
  const auto calls = [&](std::vector<TokenId> prompt_tail, std::vector<TokenId> answer,
                         std::vector<std::vector<TokenId>> markers) {
    Start(64);
    Rng rng(4);
    Request request = Greedy(RandomPrompt(rng, 20), 8);
    request.prompt.insert(request.prompt.end(), prompt_tail.begin(), prompt_tail.end());
    request.forced_tokens = std::move(answer);
    request.tool_call_markers =
        std::make_shared<const std::vector<std::vector<TokenId>>>(std::move(markers));
    const RequestId id = Submit(request);
    for (int i = 0; i < 6; ++i) {  // two tokens before its end
      Step();
    }
    return engine_->facts(id).tool_call;
  };
  EXPECT_TRUE(calls({}, {1, 7, 8, 9, 2, 3, 4, 5}, {{50, 51}, {7, 8, 9}}));
  EXPECT_TRUE(calls({}, {7, 2, 2, 2, 2, 2, 2, 2}, {{7}}));
  EXPECT_FALSE(calls({}, {1, 7, 8, 1, 9, 3, 4, 5}, {{7, 8, 9}}));
  EXPECT_FALSE(calls({7, 8}, {9, 2, 2, 2, 2, 2, 2, 2}, {{7, 8, 9}})) << "the prompt's own words";
  EXPECT_FALSE(calls({}, {1, 2, 3, 4, 5, 6, 7, 8}, {{}}));
}

TEST_F(EngineTest, TheToolIsReadFromTheTokensBehindTheMarker) {
  Start(64);
  Rng rng(4);
  Request request = Greedy(RandomPrompt(rng, 20), 8);
  request.forced_tokens = {1, 7, 11, 12, 7, 3, 4, 5};
  request.tool_call_markers =
      std::make_shared<const std::vector<std::vector<TokenId>>>(1, std::vector<TokenId>{7});
  std::vector<TokenId> seen;
  int calls = 0;
  request.tool_of_call = [&](std::span<const TokenId> call) -> uint64_t {
    seen.assign(call.begin(), call.end());
    ++calls;
    return 99;
  };
  RunOne(request);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(seen, (std::vector<TokenId>{11, 12, 7, 3, 4})) << "the last token is no part";
  request.forced_tokens = {1, 2, 11, 12, 2, 3, 4, 5};
  RunOne(request);
  EXPECT_EQ(calls, 1);
}

TEST_F(EngineTest, RetentionOutOfRangeIsRefused) {
  Start(64);
  Rng rng(4);
  Request request = Greedy(RandomPrompt(rng, 20), 8);
  kv::Retention retention;
  retention.ranges.push_back({.priority = 101});
  request.retention = std::make_shared<const kv::Retention>(retention);
  EXPECT_THAT(engine_->Validate(request).error().message, HasSubstr("ranges[0].priority"));
}

TEST_F(EngineTest, MaxNewTokensIsClippedToTheContextAndToThePool) {
  Rng rng(7);
  Start(60, [](EngineOptions& o) { o.max_model_len = 64; });
  EXPECT_EQ(RunOne(Greedy(RandomPrompt(rng, 50), 1000)).usage.completion_tokens, 14);
  Start(3, [](EngineOptions& o) { o.max_model_len = 64; });
  EXPECT_EQ(engine_->max_request_tokens(), 48);
  EXPECT_EQ(RunOne(Greedy(RandomPrompt(rng, 40), 1000)).usage.completion_tokens, 8);
}

TEST_P(EngineUnderEachPolicy, AnImpossiblePromptFailsAtOnceAndTheNextRequestCompletes) {
  Rng rng(8);
  Start(10, [](EngineOptions& o) { o.max_model_len = 400; });
  const auto reject = [&](const Request& request) {
    const auto result = engine_->Submit(request, [](RequestOutput) { FAIL(); });
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidInput);
    return result.error().message;
  };
  EXPECT_THAT(reject(Greedy(RandomPrompt(rng, 200), 1)),
              testing::AllOf(HasSubstr("200 tokens"), HasSubstr("10 blocks of 16"),
                             HasSubstr("give the cache more memory")));
  EXPECT_THAT(reject(Greedy(RandomPrompt(rng, 400), 1)),
              testing::AllOf(HasSubstr("400 tokens"), HasSubstr("context of this model")));
  EXPECT_THAT(reject(Greedy({}, 1)), HasSubstr("empty"));
  EXPECT_THAT(reject(Greedy({1, kVocab}, 1)), HasSubstr("token id 97 in the prompt"));
  EXPECT_THAT(reject(Greedy({-1}, 1)), HasSubstr("token id -1"));
  EXPECT_THAT(reject(Greedy({1}, 0)), HasSubstr("max_new_tokens"));
  Request request = Greedy({1}, 4);
  request.min_new_tokens = 5;
  EXPECT_THAT(reject(request), HasSubstr("min_new_tokens"));
  request = Greedy({1}, 4);
  request.stop_token_ids = {500};
  EXPECT_THAT(reject(request), HasSubstr("stop token ids"));
  request = Greedy({1}, 4);
  request.sampling.top_p = 7;
  EXPECT_THAT(reject(request), HasSubstr("top_p"));
  EXPECT_EQ(engine_->stats().rejected, 9);
  EXPECT_FALSE(engine_->HasWork());
  RunOne(Greedy(RandomPrompt(rng, 100), 10));
  ExpectSoloOutputs();
}

TEST_P(EngineUnderEachPolicy, AFailedStepEndsItsRequestsAndLeavesTheOthersAlone) {
  Rng rng(9);
  Start(40, [](EngineOptions& o) { o.scheduler.max_num_seqs = 2; });
  const auto prompt = RandomPrompt(rng, 40);
  const RequestId a = Submit(Greedy(prompt, 20));
  Step();
  Step();
  const RequestId b = Submit(Greedy(RandomPrompt(rng, 40), 20));
  const RequestId c = Submit(Greedy(prompt, 20));  // waits: two run at a time
  fail_ = true;
  Step();
  fail_ = false;
  for (const RequestId id : {a, b}) {
    EXPECT_EQ(received_.at(id).finish, FinishReason::kError);
    EXPECT_EQ(received_.at(id).error->message, "the accelerator is on fire");
  }
  EXPECT_EQ(received_.at(a).tokens.size(), 2U);
  EXPECT_FALSE(received_.contains(c));
  Run();
  EXPECT_EQ(received_.at(c).finish, FinishReason::kLength);
  EXPECT_EQ(received_.at(c).usage.cached_tokens, 2 * kBlock) << "what a computed before is right";
  RunOne(requests_.at(b));  // nothing of the failed step is in the cache
  ExpectSoloOutputs();
  ExpectNothingHeld();
  EXPECT_EQ(engine_->stats().failed_steps, 1);
  EXPECT_EQ(engine_->stats().finished_error, 2);
}

TEST_P(EngineUnderEachPolicy, RequestsCancelledAtRandomTimesGiveEverythingBack) {
  Rng rng(10);
  Start(24, [](EngineOptions& o) {
    o.scheduler.reserve_new_tokens = 8;
    o.scheduler.chunk_max = o.scheduler.chunk_floor = 20;  // so that some end in the middle
  });
  const auto shared = RandomPrompt(rng, 6 * kBlock);
  std::vector<RequestId> ids;
  for (int i = 0; i < 200; ++i) {
    auto prompt = shared;
    prompt.resize(rng.Below(prompt.size()) + 1);
    ids.push_back(Submit(Greedy(prompt, static_cast<int32_t>(rng.Range(1, 60)))));
    EXPECT_FALSE(engine_->Submit(Greedy(RandomPrompt(rng, 500), 1), {}).has_value());
    if (rng.Below(2) == 0) {
      Step();
    }
    engine_->Abort(ids[rng.Below(ids.size())]);
  }
  engine_->AbortAll();
  EXPECT_FALSE(engine_->HasWork());
  for (const RequestId id : ids) {
    EXPECT_TRUE(received_.at(id).finish.has_value());
    EXPECT_FALSE(engine_->Abort(id));
  }
  ExpectSoloOutputs();
  ExpectNothingHeld();
  EXPECT_EQ(engine_->stats().rejected, 200);
}

// One chunk computes what lies before, between and behind two cached segments. The guard compares
// the bytes of every sealed block after every step.
TEST_P(EngineUnderEachPolicy, AChunkThatSpansCachedSegmentsLeavesTheirBytesAlone) {
  Rng rng(16);
  Start(30);
  const Request request = Greedy(RandomPrompt(rng, 9 * kBlock + 5), 6);
  RunOne(request);
  kv::Sequence probe(request.prompt, {}, kBlock);
  const auto blocks = engine_->cache().Plan(probe, probe.num_tokens()).hits.blocks;
  for (const size_t gap : {0, 3, 4, 7}) {
    engine_->cache().Evict(blocks[gap]);
  }
  std::map<BlockId, uint64_t> before;
  for (const size_t cached : {1, 2, 5, 6, 8}) {
    before[blocks[cached]] = executor_->BlockChecksum(blocks[cached]);
  }
  const RequestId id = Submit(request);
  const StepReport report = Step();
  if (engine_->cache().policy().hits() == kv::HitScope::kGaps) {
    EXPECT_EQ(report.num_segments, 4);
    EXPECT_EQ(report.num_tokens, 4 * kBlock + 5);
  }
  Run();
  ExpectSoloOutputs();
  EXPECT_EQ(received_.at(id).usage.completion_tokens, 6);
  for (const auto& [block, checksum] : before) {
    EXPECT_EQ(executor_->BlockChecksum(block), checksum) << "block " << block;
  }
}

TEST_P(EngineUnderEachPolicy, OfTwoRequestsThatFillTheSameGapBothAreRightAndTheCountsToo) {
  Rng rng(11);
  Start(60);
  const Request request = Greedy(RandomPrompt(rng, 6 * kBlock + 3), 4);
  RunOne(request);
  (void)engine_->cache().EvictAtRandom(rng, 0.5);
  Submit(request);
  Submit(request);
  Run();
  ExpectSoloOutputs();
  ExpectNothingHeld();
  EXPECT_EQ(engine_->stats().cache.cached_blocks, 6);
  EXPECT_GT(engine_->stats().cache.duplicates, 0);
}

TEST_P(EngineUnderEachPolicy, SaltsNeverShareAndAreNoSlowerAfterwards) {
  Rng rng(12);
  Start(300);
  Request request = Greedy(RandomPrompt(rng, 2000), 1);
  const auto cached = [&](const std::string& salt) {
    request.cache_salt = salt;
    return RunOne(request).usage.cached_tokens;
  };
  EXPECT_EQ(cached("A"), 0);
  EXPECT_EQ(cached("B"), 0);
  EXPECT_EQ(cached("A"), 1984);
  request.adapter = "A";
  EXPECT_EQ(cached(""), 0);
  ExpectSoloOutputs();
}

TEST_P(EngineUnderEachPolicy, CountersAddUp) {
  Rng rng(13);
  Start(30, [](EngineOptions& o) { o.scheduler.reserve_new_tokens = 0; });
  int64_t prompt_tokens = 0;
  int64_t generated = 0;
  std::vector<std::vector<TokenId>> stems = {RandomPrompt(rng, 100), RandomPrompt(rng, 100)};
  for (int i = 0; i < 20; ++i) {
    auto prompt = stems[rng.Below(2)];
    prompt.resize(50 + rng.Below(50));
    prompt_tokens += static_cast<int64_t>(prompt.size());
    generated += 60;
    Submit(Greedy(prompt, 60));
  }
  Run();
  ExpectSoloOutputs();
  const EngineStats stats = engine_->stats();
  EXPECT_EQ(stats.prompt_tokens, prompt_tokens);
  EXPECT_EQ(stats.prompt_tokens_cached + stats.prompt_tokens_computed, prompt_tokens);
  EXPECT_EQ(stats.scheduler.prefix_query_tokens, prompt_tokens);
  EXPECT_EQ(stats.scheduler.prefix_hit_tokens, stats.prompt_tokens_cached);
  EXPECT_GT(stats.prompt_tokens_cached, 0);
  EXPECT_EQ(stats.generation_tokens, generated);
  EXPECT_EQ(stats.finished_length, 20);
  EXPECT_EQ(stats.steps, static_cast<int64_t>(rows_.size()));
  EXPECT_EQ(stats.step_tokens, std::accumulate(rows_.begin(), rows_.end(), 0LL));
  EXPECT_GT(stats.scheduler.preemptions, 0);
  // Rows = every prompt token not cached, every generated token but the last of each request (its
  // KV is never needed), and what preemptions made the engine compute again.
  EXPECT_EQ(stats.step_tokens,
            stats.prompt_tokens_computed + generated - 20 + stats.scheduler.recomputed_tokens);
}

TEST_F(EngineTest, UsageAndTimingTellTheStory) {
  Rng rng(14);
  Start(60);
  const Request request = Greedy(RandomPrompt(rng, 5 * kBlock + 1), 3);
  RunOne(request);
  kv::Sequence probe(request.prompt, {}, kBlock);
  const auto blocks = engine_->cache().Plan(probe, probe.num_tokens()).hits.blocks;
  engine_->cache().Evict(blocks[2]);
  clock_.Set(5'000'000);
  const RequestId id = Submit(request);
  clock_.Set(6'000'000);
  const StepReport report = Step();
  EXPECT_EQ(report.num_segments, 2);
  EXPECT_EQ(report.num_tokens, kBlock + 1);
  EXPECT_EQ(report.duration_us, 1000);
  EXPECT_EQ(received_.at(id).usage.cached_tokens, 4 * kBlock) << "known with the first token";
  Run();
  const Received& got = received_.at(id);
  EXPECT_EQ(got.usage.prompt_tokens, 5 * kBlock + 1);
  EXPECT_EQ(got.usage.cached_tokens, 4 * kBlock);
  EXPECT_EQ(got.usage.prefix_tokens, 2 * kBlock);
  EXPECT_EQ(got.usage.cached_segments, 2);
  EXPECT_EQ(got.usage.completion_tokens, 3);
  EXPECT_EQ(got.timing.submitted_us, 5'000'000);
  EXPECT_EQ(got.timing.scheduled_us, 6'000'000);
  EXPECT_EQ(got.timing.first_token_us, 6'001'000);
  EXPECT_EQ(got.timing.finished_us, 6'003'000);
  EXPECT_EQ(got.timing.control_us, 0) << "what the executor takes is not the cache's";

  const EngineStats stats = engine_->stats();
  EXPECT_EQ(stats.prompts, 2);
  EXPECT_EQ(stats.prompts_with_hit, 1);
  EXPECT_EQ(stats.prompt_blocks, 2 * 5);
  EXPECT_EQ(stats.prompt_blocks_cached, 4);
  EXPECT_EQ(stats.prompt_tokens_prefix, 2 * kBlock);
  const kv::CostModel cost = kv::PolicyOptions().cost;
  EXPECT_DOUBLE_EQ(stats.no_cache_cost_us, 2 * cost.RecomputeUs(0, 5 * kBlock + 1));
  EXPECT_DOUBLE_EQ(stats.miss_cost_us, stats.no_cache_cost_us - cost.RecomputeUs(0, 2 * kBlock) -
                                           cost.RecomputeUs(3 * kBlock, 2 * kBlock));
}

TEST_F(EngineTest, AnEmptyStepSaysWhy) {
  Start(10);
  EXPECT_EQ(Step().idle_reason, "there are no requests");
}

TEST_F(EngineTest, TheGuardNoticesARewrittenSealedBlock) {
  Rng rng(15);
  Start(20);
  RunOne(Greedy(RandomPrompt(rng, 40), 1));
  const auto rewrite = [&] {
    executor_->before_execute = [&](const model::StepBatch&) -> Result<void> {
      model::StepBatch rogue;
      std::vector<BlockId> every_block(20);
      for (BlockId id = 0; id < 20; ++id) {
        every_block[static_cast<size_t>(id)] = id;
      }
      executor_->before_execute = {};
      rogue.Add(RandomPrompt(rng, 20 * kBlock), 0, every_block, false);
      (void)executor_->Execute(rogue);
      return {};
    };
    RunOne(Greedy(RandomPrompt(rng, 10), 1));
  };
  EXPECT_DEATH(rewrite(), "sealed block [0-9]+ changed");
}

// Random arrivals, salts, priorities, sampling, evictions, aborts, policies, chunk sizes and pools.
TEST_P(EngineUnderEachPolicy, RandomLoadsSayWhatTheySaySolo) {
  int64_t preemptions = 0;
  int64_t gaps = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed, 2);
    Start(static_cast<int32_t>(rng.Range(9, 40)), [&](EngineOptions& o) {
      o.scheduler.max_num_seqs = static_cast<int32_t>(rng.Range(1, 8));
      o.scheduler.chunk_max = static_cast<int32_t>(rng.Range(1, 512));
      o.scheduler.chunk_floor = static_cast<int32_t>(rng.Range(1, o.scheduler.chunk_max));
      o.scheduler.reserve_new_tokens = rng.Below(2) == 0 ? std::numeric_limits<int32_t>::max()
                                                         : static_cast<int32_t>(rng.Below(30));
      o.cache.policy.seed = seed;
      o.cache.hash.algorithm =
          rng.Below(2) == 0 ? kv::HashAlgorithm::kXxh3 : kv::HashAlgorithm::kSha256Cbor;
    });
    std::vector<std::vector<TokenId>> stems;
    for (int i = 0; i < 3; ++i) {
      stems.push_back(RandomPrompt(rng, 5 * kBlock));
    }
    std::vector<RequestId> ids;
    for (int step = 0; step < 80; ++step) {
      if (rng.Below(2) == 0) {
        Request request =
            Greedy(stems[rng.Below(stems.size())], static_cast<int32_t>(rng.Range(1, 40)));
        request.prompt.resize(rng.Below(request.prompt.size()) + 1);
        request.priority = static_cast<int32_t>(rng.Below(3));
        request.cache_salt = rng.Below(4) == 0 ? "salt" : "";
        if (rng.Below(2) == 0) {
          request.sampling.temperature = 1;
          request.sampling.presence_penalty = 0.5F;
          request.sampling.seed = rng.Below(100);
          request.sampling.num_logprobs = 0;
        }
        request.stop_token_ids = {static_cast<TokenId>(rng.Below(kVocab))};
        request.min_new_tokens = static_cast<int32_t>(rng.Below(2));
        ids.push_back(Submit(request));
      }
      if (rng.Below(4) == 0) {
        (void)engine_->cache().EvictAtRandom(rng, 0.2);
      }
      if (rng.Below(10) == 0 && !ids.empty()) {
        engine_->Abort(ids[rng.Below(ids.size())]);
      }
      Step();
      clock_.Advance(static_cast<int64_t>(rng.Below(2'000'000)));
    }
    ASSERT_NO_FATAL_FAILURE(Run());
    ExpectSoloOutputs();
    ExpectNothingHeld();
    ASSERT_FALSE(HasFailure());
    preemptions += engine_->stats().scheduler.preemptions;
    for (const auto& [id, got] : received_) {
      gaps += got.usage.cached_segments >= 2 ? 1 : 0;
    }
  }
  EXPECT_GT(preemptions, 10);
  EXPECT_TRUE(gaps > 0 || engine_->cache().policy().hits() == kv::HitScope::kPrefix);
}

}  // namespace
}  // namespace kvik::engine
