// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <memory>
#include <optional>
#include <thread>

#include "base/bounded_queue.h"
#include "base/rng.h"
#include "engine/testing/fake_executor.h"
#include "kv/testing/each_policy.h"

namespace kvik::engine {
namespace {

Request MakeRequest(int32_t prompt_tokens, int32_t max_new_tokens, uint64_t seed = 1) {
  Rng rng(seed);
  Request request;
  for (int32_t i = 0; i < prompt_tokens; ++i) {
    request.prompt.push_back(static_cast<TokenId>(rng.Below(97)));
  }
  request.max_new_tokens = max_new_tokens;
  request.sampling.temperature = 0;
  return request;
}

// Shared with the sink: the engine thread may still be inside Push when its item has been taken.
using Outputs = std::shared_ptr<BoundedQueue<RequestOutput>>;

Outputs MakeOutputs() { return std::make_shared<BoundedQueue<RequestOutput>>(1000); }

OutputSink Into(const Outputs& outputs) {
  return [outputs](RequestOutput output) { outputs->Push(std::move(output)); };
}

// Reads outputs until one has `finish`; counts the tokens.
RequestOutput WaitForEnd(const Outputs& outputs, size_t* num_tokens = nullptr) {
  while (true) {
    RequestOutput output = outputs->Pop().value();
    if (num_tokens != nullptr) {
      *num_tokens += output.tokens.size();
    }
    if (output.finish) {
      return output;
    }
  }
}

class EngineLoopTest : public testing::Test {
 protected:
  void SetUp() override {
    executor_.before_execute = [this](const model::StepBatch&) -> Result<void> {
      if (gate_ != nullptr) {
        entered_->count_down();
        gate_->wait();
      }
      return {};
    };
  }
  void Start(EngineLoopOptions options = {}) {
    EngineOptions engine_options;
    engine_options.cache.num_blocks = 64;
    loop_ = std::make_unique<EngineLoop>(Engine::Create(engine_options, executor_, clock_).value(),
                                         std::move(options));
  }
  // From now on the engine thread stops inside the next step until OpenGate.
  void CloseGate() {
    ASSERT_TRUE(loop_->RunOnEngineThread([this](Engine&) {
      gate_ = std::make_unique<std::latch>(1);
      entered_ = std::make_unique<std::latch>(1);
    }));
  }

  ManualClock clock_;
  FakeExecutor executor_{FakeExecutorOptions{}};
  std::unique_ptr<std::latch> gate_;  // read by the engine thread only
  std::unique_ptr<std::latch> entered_;
  std::unique_ptr<EngineLoop> loop_;
};

TEST_F(EngineLoopTest, ManyThreadsGetTheirOwnTokens) {
  Start();
  std::vector<std::thread> clients;
  std::atomic<int> right = 0;
  for (uint64_t client = 0; client < 4; ++client) {
    clients.emplace_back([&, client] {
      for (uint64_t i = 0; i < 10; ++i) {
        const Outputs outputs = MakeOutputs();
        const Request request = MakeRequest(30, 5, client * 100 + i);
        ASSERT_TRUE(loop_->Submit(request, Into(outputs)).has_value());
        std::vector<TokenId> tokens = request.prompt;
        bool ok = true;
        for (bool ended = false; !ended;) {
          const RequestOutput output = outputs->Pop().value();
          for (const TokenOutput& token : output.tokens) {
            const auto logits = FakeExecutor::ReferenceLogits(tokens, 97);
            ok &= token.token == std::max_element(logits.begin(), logits.end()) - logits.begin();
            tokens.push_back(token.token);
          }
          ended = output.finish.has_value();
        }
        right += ok && tokens.size() == 35 ? 1 : 0;
      }
    });
  }
  for (std::thread& client : clients) {
    client.join();
  }
  EXPECT_EQ(right, 40);
  EXPECT_TRUE(loop_->RunOnEngineThread([](Engine& engine) {
    EXPECT_EQ(engine.stats().finished_length, 40);
    EXPECT_EQ(engine.stats().kv_cache_usage, 0);
  }));
  EXPECT_EQ(loop_->stats().generation_tokens, 200);
}

TEST_F(EngineLoopTest, AnInvalidRequestFailsOnTheCallersThread) {
  Start();
  const auto result = loop_->Submit(MakeRequest(5000, 1), [](RequestOutput) { FAIL(); });
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidInput);
  ASSERT_TRUE(loop_->RunOnEngineThread([](Engine&) {}));
  EXPECT_EQ(loop_->stats().rejected, 1);
}

TEST_F(EngineLoopTest, AbortEndsARunningRequestWithCancelled) {
  Start();
  CloseGate();
  const Outputs outputs = MakeOutputs();
  const RequestId id = loop_->Submit(MakeRequest(30, 900), Into(outputs)).value();
  entered_->wait();
  loop_->Abort(id);
  loop_->Abort(12345);  // unknown: ignored
  gate_->count_down();
  size_t num_tokens = 0;
  EXPECT_EQ(WaitForEnd(outputs, &num_tokens).finish, FinishReason::kCancelled);
  EXPECT_LT(num_tokens, 900U);
}

TEST_F(EngineLoopTest, DrainLetsRunningRequestsFinishAndRefusesNewOnes) {
  Start();
  CloseGate();
  const Outputs outputs = MakeOutputs();
  ASSERT_TRUE(loop_->Submit(MakeRequest(30, 50), Into(outputs)).has_value());
  entered_->wait();
  loop_->Drain();
  EXPECT_TRUE(loop_->draining());
  EXPECT_EQ(loop_->Submit(MakeRequest(30, 1), {}).error().code, ErrorCode::kUnavailable);
  gate_->count_down();
  loop_->Join();
  size_t num_tokens = 0;
  EXPECT_EQ(WaitForEnd(outputs, &num_tokens).finish, FinishReason::kLength);
  EXPECT_EQ(num_tokens, 50U);
  EXPECT_FALSE(loop_->RunOnEngineThread([](Engine&) { FAIL(); }));
}

TEST_F(EngineLoopTest, StopCancelsWhatRunsAndWhatWaits) {
  Start();
  CloseGate();
  const Outputs running = MakeOutputs();
  const Outputs waiting = MakeOutputs();
  ASSERT_TRUE(loop_->Submit(MakeRequest(30, 900), Into(running)).has_value());
  entered_->wait();
  ASSERT_TRUE(loop_->Submit(MakeRequest(30, 900), Into(waiting)).has_value());
  std::thread stopper([&] { loop_->Stop(); });
  while (!loop_->draining()) {
    std::this_thread::yield();
  }
  gate_->count_down();
  stopper.join();
  EXPECT_EQ(WaitForEnd(running).finish, FinishReason::kCancelled);
  EXPECT_EQ(WaitForEnd(waiting).finish, FinishReason::kCancelled);
  loop_->Stop();  // again
}

TEST_F(EngineLoopTest, BeyondMaxRequestsSubmitAnswersUnavailable) {
  EngineLoopOptions options;
  options.max_requests = 3;
  Start(std::move(options));
  CloseGate();
  const Outputs outputs = MakeOutputs();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(loop_->Submit(MakeRequest(10, 1), Into(outputs)).has_value());
  }
  EXPECT_EQ(loop_->Submit(MakeRequest(10, 1), {}).error().code, ErrorCode::kUnavailable);
  gate_->count_down();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(WaitForEnd(outputs).finish, FinishReason::kLength);
  }
  ASSERT_TRUE(loop_->Submit(MakeRequest(10, 1), Into(outputs)).has_value());
  EXPECT_EQ(WaitForEnd(outputs).finish, FinishReason::kLength);
}

TEST_F(EngineLoopTest, EveryStepIsReported) {
  std::atomic<int64_t> tokens = 0;
  EngineLoopOptions options;
  options.on_step = [&](const StepReport& report) { tokens += report.num_tokens; };
  Start(std::move(options));
  const Outputs outputs = MakeOutputs();
  ASSERT_TRUE(loop_->Submit(MakeRequest(30, 5), Into(outputs)).has_value());
  WaitForEnd(outputs);
  loop_->Stop();
  EXPECT_EQ(tokens, 34);
}

TEST_F(EngineLoopTest, TheEngineIsSeenOnceMoreWhenAllHasEnded) {
  std::optional<EngineStats> last;
  EngineLoopOptions options;
  options.on_stop = [&](Engine& engine) {
    EXPECT_FALSE(last.has_value());
    EXPECT_FALSE(engine.HasWork());
    last = engine.stats();
  };
  Start(std::move(options));
  const Outputs outputs = MakeOutputs();
  ASSERT_TRUE(loop_->Submit(MakeRequest(30, 5), Into(outputs)).has_value());
  loop_->Drain();
  loop_->Join();
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(last->finished_length, 1);
}

TEST_F(EngineLoopTest, DestructionOfABusyLoopEndsEveryRequest) {
  Start();
  std::atomic<int> ended = 0;
  for (uint64_t i = 0; i < 50; ++i) {
    ASSERT_TRUE(loop_
                    ->Submit(MakeRequest(30, 500, i),
                             [&](RequestOutput output) { ended += output.finish ? 1 : 0; })
                    .has_value());
  }
  loop_.reset();
  EXPECT_EQ(ended, 50);
}

// Threads submit, read a little, and leave: at once, in the middle, or not at all.
class EngineLoopUnderEachPolicy : public testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(Policies, EngineLoopUnderEachPolicy, kv::EachPolicy(), kv::PolicyTestName);

TEST_P(EngineLoopUnderEachPolicy, ClientsThatLeaveAtAnyTimeLeaveNothingBehind) {
  constexpr int32_t kBlocks = 24;
  constexpr int64_t kClients = 4;
  constexpr int64_t kRequests = 25;
  FakeExecutorOptions fake;
  fake.num_blocks = kBlocks;
  FakeExecutor executor(fake);
  const SystemClock clock;
  EngineOptions options;
  options.cache.num_blocks = kBlocks;
  options.cache.policy.name = std::string(GetParam());
  options.scheduler.max_num_seqs = 6;
  options.scheduler.chunk_max = options.scheduler.chunk_floor = 24;
  options.scheduler.reserve_new_tokens = 4;
  options.verify_sealed_blocks = true;
  EngineLoop loop(Engine::Create(options, executor, clock).value(), {});
  std::atomic<int> wrong = 0;
  std::atomic<int> cancelled = 0;
  const auto client = [&](uint64_t seed) {
    Rng rng(seed);
    for (int64_t i = 0; i < kRequests; ++i) {
      Request request = MakeRequest(static_cast<int32_t>(rng.Range(1, 200)), 30, rng.Below(3));
      request.priority = static_cast<int32_t>(rng.Below(3));
      const size_t patience = rng.Below(2) == 0 ? 1000 : rng.Below(20);
      std::vector<TokenId> tokens = request.prompt;
      const Outputs outputs = MakeOutputs();
      const RequestId id = loop.Submit(request, Into(outputs)).value();
      bool left = false;
      for (bool ended = false; !ended;) {
        if (!left && tokens.size() - request.prompt.size() >= patience) {
          left = true;
          loop.Abort(id);
        }
        const RequestOutput output = outputs->Pop().value();
        for (const TokenOutput& token : output.tokens) {
          const auto logits = FakeExecutor::ReferenceLogits(tokens, 97);
          wrong += token.token != std::max_element(logits.begin(), logits.end()) - logits.begin();
          tokens.push_back(token.token);
        }
        ended = output.finish.has_value();
        cancelled += output.finish == FinishReason::kCancelled ? 1 : 0;
        wrong += output.finish == FinishReason::kCancelled && !left ? 1 : 0;
      }
    }
  };
  std::vector<std::thread> clients;
  for (uint64_t i = 0; i < kClients; ++i) {
    clients.emplace_back(client, i);
  }
  for (std::thread& thread : clients) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(cancelled, 0);
  EXPECT_TRUE(loop.RunOnEngineThread([&](Engine& engine) {
    engine.cache().CheckInvariant();
    const EngineStats stats = engine.stats();
    EXPECT_FALSE(engine.HasWork());
    EXPECT_EQ(stats.cache.free_blocks + stats.cache.cached_blocks, kBlocks);
    EXPECT_EQ(stats.cache.reserved_blocks, 0);
    EXPECT_EQ(stats.finished_length + stats.finished_cancelled, kClients * kRequests);
    EXPECT_EQ(stats.finished_cancelled, cancelled);
    EXPECT_EQ(stats.prompt_tokens, stats.prompt_tokens_cached + stats.prompt_tokens_computed);
  }));
}

}  // namespace
}  // namespace kvik::engine
