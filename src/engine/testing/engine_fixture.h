// SPDX-License-Identifier: Apache-2.0
// engine/testing/engine_fixture.h: an engine over a FakeExecutor and a manual clock, stepped by the
// test: every step takes 1 ms and the cache's invariant is checked after it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/testing/fake_executor.h"
#include "engine/testing/requests.h"

namespace kvik::engine {

inline constexpr int32_t kBlock = 16;  // tokens

class EngineFixture : public ::testing::Test {
 protected:
  // `change` has the last word on the options. Again: as a new process.
  void StartEngine(int32_t num_blocks, const std::function<void(EngineOptions&)>& change = {},
                   std::optional<kv::KvGeometry> geometry = std::nullopt) {
    EngineOptions options;
    options.cache.num_blocks = num_blocks;
    options.cache.block_size_tokens = kBlock;
    options.cache.policy.name = policy_;
    options.verify_sealed_blocks = true;
    if (change) {
      change(options);
    }
    FakeExecutorOptions fake;
    fake.num_blocks = num_blocks;
    fake.geometry = geometry;
    engine_.reset();
    received_.clear();
    requests_.clear();
    executor_ = std::make_unique<FakeExecutor>(fake);
    executor_->before_execute = [this](const model::StepBatch& batch) -> Result<void> {
      clock_.Advance(1000);
      rows_.push_back(batch.num_rows());
      return fail_ ? Result<void>(Err(ErrorCode::kInternal, "the accelerator is on fire"))
                   : Result<void>();
    };
    engine_ = Engine::Create(options, *executor_, clock_).value();
  }

  RequestId Submit(const Request& request) {
    const auto id = engine_->Submit(
        request, [this](const RequestOutput& output) { received_[output.id].Add(output); });
    EXPECT_TRUE(id.has_value());
    requests_[*id] = request;
    return *id;
  }
  StepReport Step() {
    const StepReport report = engine_->Step();
    engine_->cache().CheckInvariant();
    return report;
  }
  void Run() {
    for (int steps = 0; engine_->HasWork(); ++steps) {
      ASSERT_LT(steps, 100'000) << "does not end";
      ASSERT_EQ(Step().idle_reason, "");
    }
  }
  // Submits alone and runs to the end.
  Received RunOne(const Request& request) {
    const RequestId id = Submit(request);
    Run();
    return received_.at(id);
  }

  // What the request's tokens are when nothing else runs and nothing is cached.
  void ExpectSolo(RequestId id) {
    const Received& got = received_.at(id);
    const Received solo = Solo(requests_.at(id));
    EXPECT_EQ(got.tokens, solo.tokens) << "request " << id;
    EXPECT_EQ(got.logprobs, solo.logprobs) << "request " << id;
    EXPECT_EQ(got.finish, solo.finish) << "request " << id;
  }
  // Of all requests that ended by themselves.
  void ExpectSoloOutputs() {
    for (const auto& [id, request] : requests_) {
      const auto finish = received_.at(id).finish;
      if (finish == FinishReason::kStop || finish == FinishReason::kLength) {
        ExpectSolo(id);
      }
    }
  }
  void ExpectNothingHeld() {
    const kv::CacheStats stats = engine_->stats().cache;
    EXPECT_EQ(stats.free_blocks + stats.cached_blocks, stats.total_blocks);
    EXPECT_EQ(stats.reserved_blocks, 0);
    EXPECT_EQ(stats.loading_blocks, 0);
    EXPECT_EQ(stats.held_blocks, 0);
    EXPECT_EQ(engine_->stats().kv_cache_usage, 0);
  }

  std::string policy_ = "lru";
  ManualClock clock_{1'000'000};
  std::unique_ptr<FakeExecutor> executor_;
  std::unique_ptr<Engine> engine_;
  bool fail_ = false;
  std::vector<int32_t> rows_;  // of every step
  std::map<RequestId, Request> requests_;
  std::map<RequestId, Received> received_;
};

}  // namespace kvik::engine
