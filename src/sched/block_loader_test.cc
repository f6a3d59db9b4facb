// SPDX-License-Identifier: Apache-2.0
// The scheduler with KV that comes from elsewhere: who waits, who stands still, who is preempted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sched/scheduler.h"

namespace kvik::sched {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int32_t kBlock = 16;

class Loader final : public BlockLoader {
 public:
  explicit Loader(kv::KvCache& cache) : cache_(cache) {}

  bool hold_back = false;
  std::optional<kv::BlockRange> load;  // of every request, at its admission
  std::vector<BlockId> loading;
  std::vector<std::string> calls;

  bool Added(RequestId id, kv::Sequence& sequence) override {
    calls.push_back("added " + std::to_string(id));
    EXPECT_FALSE(sequence.admitted());
    return hold_back;
  }
  void Admitted(RequestId id, kv::Sequence& sequence) override {
    calls.push_back("admitted " + std::to_string(id));
    if (load) {
      for (const BlockId block : cache_.BeginLoad(sequence, *load)) {
        loading.push_back(block);
      }
    }
  }
  void Preempted(RequestId id, kv::Sequence& sequence) override {
    calls.push_back("preempted " + std::to_string(id));
    EXPECT_FALSE(sequence.admitted());
  }
  void EndAll(const std::optional<kv::BlockQuality>& quality) {
    for (const BlockId block : loading) {
      (void)cache_.EndLoad(block, quality);
    }
    loading.clear();
  }

 private:
  kv::KvCache& cache_;
};

class BlockLoaderTest : public testing::Test {
 protected:
  void Start(int32_t num_blocks, const SchedulerOptions& options = {}) {
    kv::CacheOptions cache_options;
    cache_options.num_blocks = num_blocks;
    cache_options.block_size_tokens = kBlock;
    cache_options.policy.name = "lru";
    cache_ = kv::KvCache::Create(cache_options).value();
    scheduler_ = std::make_unique<Scheduler>(options, *cache_);
    loader_ = std::make_unique<Loader>(*cache_);
    scheduler_->SetLoader(loader_.get());
  }
  // A prompt of `blocks` full blocks and a token, and one token to generate.
  RequestId Add(int32_t blocks, int32_t priority = 0) {
    const RequestId id = next_id_++;
    std::vector<TokenId> prompt(static_cast<size_t>(blocks * kBlock + 1), static_cast<TokenId>(id));
    EXPECT_TRUE(scheduler_->Add(SchedRequest{id, priority, prompt, 1, {}}).has_value());
    return id;
  }
  // The ids in the step. Requests that are complete leave.
  std::vector<RequestId> Step() {
    plan_ = scheduler_->Schedule();
    scheduler_->Allocate(plan_);
    scheduler_->Commit(plan_);
    std::vector<RequestId> ids;
    for (const ScheduledRequest& scheduled : plan_.requests) {
      ids.push_back(scheduled.id);
      if (scheduled.last_token) {
        scheduler_->Remove(scheduled.id);
      }
    }
    cache_->CheckInvariant();
    return ids;
  }

  std::unique_ptr<kv::KvCache> cache_;
  std::unique_ptr<Loader> loader_;  // the scheduler goes first
  std::unique_ptr<Scheduler> scheduler_;
  StepPlan plan_;
  RequestId next_id_ = 1;
};

TEST_F(BlockLoaderTest, WhoIsHeldBackJoinsTheQueueAtTheOldPlace) {
  SchedulerOptions options;
  options.max_num_seqs = 1;
  Start(20, options);
  const RequestId runs = Add(2);
  loader_->hold_back = true;
  const RequestId held = Add(2);
  loader_->hold_back = false;
  const RequestId behind = Add(2);
  EXPECT_EQ(scheduler_->stats().held_back, 1);
  EXPECT_EQ(scheduler_->stats().waiting, 3);
  EXPECT_THAT(Step(), ElementsAre(runs));
  scheduler_->LetIn(held);
  scheduler_->LetIn(held);  // no effect
  EXPECT_THAT(Step(), ElementsAre(held));
  EXPECT_THAT(Step(), ElementsAre(behind));
  loader_->hold_back = true;
  const RequestId leaves = Add(2);
  EXPECT_THAT(Step(), IsEmpty());
  EXPECT_EQ(plan_.wait_reason, WaitReason::kNone);
  EXPECT_TRUE(scheduler_->Remove(leaves));
  EXPECT_FALSE(scheduler_->HasWork());
}

TEST_F(BlockLoaderTest, LoadsBeginBeforeTheFirstChunkIsPlanned) {
  Start(20);
  loader_->load = kv::BlockRange{1, 2};
  const RequestId id = Add(4);
  EXPECT_THAT(Step(), ElementsAre(id));
  EXPECT_THAT(loader_->calls, ElementsAre("added 1", "admitted 1"));
  EXPECT_THAT(plan_.requests[0].runs, ElementsAre(kv::TokenRun{0, kBlock}));
  EXPECT_THAT(Step(), IsEmpty());
  EXPECT_EQ(scheduler_->stats().running, 1);
  loader_->EndAll(kv::BlockQuality{});
  EXPECT_THAT(Step(), ElementsAre(id));
  EXPECT_EQ(plan_.num_tokens, kBlock + 1);
}

TEST_F(BlockLoaderTest, WhoStandsStillTakesNoSeat) {
  SchedulerOptions options;
  options.max_num_seqs = 2;
  options.chunk_max = options.chunk_floor = kBlock;
  Start(40, options);
  loader_->load = kv::BlockRange{0, 2};
  for (int i = 0; i < 4; ++i) {
    Add(3);
  }
  EXPECT_THAT(Step(), IsEmpty());
  EXPECT_EQ(scheduler_->stats().running, 4);
  loader_->load.reset();
  const RequestId fifth = Add(3);
  const RequestId sixth = Add(3);
  Add(3);
  EXPECT_THAT(Step(), ElementsAre(fifth, sixth));
  EXPECT_EQ(plan_.wait_reason, WaitReason::kSeqs);
  loader_->EndAll(std::nullopt);
  EXPECT_THAT(Step(), ElementsAre(1U, 2U)) << "all can run, the most important ones do";
  while (scheduler_->HasWork()) {
    EXPECT_LE(Step().size(), 2U);
    ASSERT_FALSE(plan_.empty());
  }
}

// Blocks that somebody writes to come back only when that ends, so preempting their request before
// would be in vain.
TEST_F(BlockLoaderTest, NobodyIsPreemptedForBlocksThatAreBeingWritten) {
  Start(12);
  loader_->load = kv::BlockRange{1, 6};
  const RequestId loads = Add(7, /*priority=*/1);
  Step();
  loader_->load.reset();
  const RequestId urgent = Add(7);
  EXPECT_THAT(Step(), IsEmpty());
  EXPECT_EQ(plan_.wait_reason, WaitReason::kCapacity);
  EXPECT_EQ(plan_.missing_blocks, 4);
  EXPECT_EQ(scheduler_->preemptions(loads), 0);
  loader_->EndAll(kv::BlockQuality{});
  EXPECT_THAT(Step(), ElementsAre(urgent));
  EXPECT_EQ(scheduler_->preemptions(loads), 1);
  EXPECT_EQ(loader_->calls.back(), "admitted 2");
  EXPECT_EQ(loader_->calls[loader_->calls.size() - 2], "preempted 1");
  EXPECT_THAT(Step(), ElementsAre(loads));
}

// What a preempted request was loading is not lost, and the pool is whole again afterwards.
TEST_F(BlockLoaderTest, APreemptedRequestLeavesItsLoadsBehind) {
  Start(12);
  loader_->load = kv::BlockRange{1, 2};
  const RequestId loads = Add(7, /*priority=*/1);
  Step();
  loader_->load.reset();
  const RequestId urgent = Add(7);
  EXPECT_THAT(Step(), ElementsAre(urgent));
  EXPECT_EQ(scheduler_->preemptions(loads), 1);
  EXPECT_EQ(cache_->stats().loading_blocks, 2);
  loader_->EndAll(kv::BlockQuality{});
  EXPECT_THAT(Step(), ElementsAre(loads));
  EXPECT_EQ(plan_.num_tokens, 4 * kBlock + 1) << "one block was computed, two arrived";
  EXPECT_FALSE(scheduler_->HasWork());
  EXPECT_EQ(cache_->AvailableBlocks(), 12);
  scheduler_->SetLoader(nullptr);
}

}  // namespace
}  // namespace kvik::sched
