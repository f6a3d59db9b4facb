// SPDX-License-Identifier: Apache-2.0
#include "kv/retention_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "kv/testing/toy_cache.h"

namespace kvik::kv {
namespace {

using Blocks = std::vector<BlockId>;

constexpr int32_t kBlock = 16;
constexpr int64_t kSecond = 1'000'000;

std::unique_ptr<EvictionPolicy> Make(const std::string& name, int32_t num_blocks) {
  return MakeEvictionPolicy({.name = name,
                             .obey_clients = true,
                             .num_blocks = num_blocks,
                             .block_size_tokens = kBlock})
      .value();
}

// Blocks [first, first + count) are one request's, which ends at `now_us`.
void Serve(EvictionPolicy& policy, BlockId first, int32_t count, int64_t now_us,
           const Retention* retention, int32_t prompt_tokens) {
  std::vector<BlockId> released;
  for (int32_t i = 0; i < count; ++i) {
    policy.Track({.block = first + i,
                  .first_pos = i * kBlock,
                  .content = static_cast<uint64_t>(first + i + 1)});
    released.insert(released.begin(), first + i);
  }
  RequestFacts facts{.request = static_cast<uint64_t>(first) + 1, .prompt_tokens = prompt_tokens};
  if (retention != nullptr) {
    facts.retention = std::make_shared<const Retention>(*retention);
  }
  policy.Release(released, {now_us, facts, Blocks(released.rbegin(), released.rend())});
}

TEST(RetentionPolicy, LowPrioritiesGoFirstAndHighOnesLast) {
  const auto policy = Make("lru", 16);
  Retention high{.ranges = {{.start_token = 0, .end_token = 2 * kBlock, .priority = 80}}};
  high.decode_priority = 10;
  Serve(*policy, 0, 4, 1, &high, 3 * kBlock);  // 0, 1: 80; 2: default; 3: 10
  Serve(*policy, 4, 2, 2, nullptr, 2 * kBlock);
  const Retention low{.ranges = {{.start_token = 0, .end_token = 1, .priority = 20},
                                 {.start_token = kBlock, .priority = 90}}};
  Serve(*policy, 6, 2, 3, &low, 2 * kBlock);  // 6: 20; 7: 90
  EXPECT_EQ(policy->stats().evictable, 8);
  EXPECT_EQ(policy->SelectVictims(8, 4), (Blocks{3, 6, 2, 5, 4, 1, 0, 7}));
  EXPECT_EQ(policy->stats().evicted, 8);
  EXPECT_EQ(policy->stats().tracked, 0);
}

TEST(RetentionPolicy, ARangeCoversBlocksInPartAndTheHighestCounts) {
  const auto policy = Make("lru", 16);
  const Retention retention{
      .ranges = {{.start_token = 0, .end_token = kBlock + 1, .priority = 40},
                 {.start_token = kBlock, .end_token = kBlock + 1, .priority = 50}}};
  Serve(*policy, 0, 3, 1, &retention, 3 * kBlock);
  EXPECT_EQ(policy->SelectVictims(3, 2), (Blocks{2, 0, 1}));
}

TEST(RetentionPolicy, AfterItsDurationABlockIsAsAnyOther) {
  const auto policy = Make("lru", 16);
  const Retention kept{.ranges = {{.start_token = 0, .priority = 80, .duration_us = 10 * kSecond}}};
  const Retention dropped{
      .ranges = {{.start_token = 0, .priority = 0, .duration_us = 10 * kSecond}}};
  Serve(*policy, 0, 1, 0, &kept, kBlock);
  Serve(*policy, 1, 1, 1, &dropped, kBlock);
  Serve(*policy, 2, 1, 2, nullptr, kBlock);
  policy->Tick(11 * kSecond);
  Serve(*policy, 3, 1, 12 * kSecond, nullptr, kBlock);
  // The two became evictable like any other when their time was over.
  EXPECT_EQ(policy->SelectVictims(4, 13 * kSecond), (Blocks{2, 0, 1, 3}));
}

TEST(RetentionPolicy, AHeldBlockIsNotTakenWhateverItsPriority) {
  const auto policy = Make("lru", 16);
  const Retention low{.ranges = {{.start_token = 0, .priority = 0}}};
  Serve(*policy, 0, 2, 1, &low, 2 * kBlock);
  Serve(*policy, 2, 2, 2, nullptr, 2 * kBlock);
  const Access again{3, {.request = 9}};
  policy->Hit(Blocks{0}, again);
  policy->Touch(Blocks{0}, again);
  EXPECT_EQ(policy->SelectVictims(3, 4), (Blocks{1, 3, 2}));
  policy->Release(Blocks{0}, {5, {.request = 9}});  // and now it says nothing
  EXPECT_EQ(policy->SelectVictims(1, 6), (Blocks{0}));
}

// All that is evictable under LRU with retention, the naive way.
class NaiveRetention final : public EvictionPolicy {
 public:
  std::string_view name() const override { return "naive"; }
  void Track(const TrackedBlock& block) override { first_pos_[block.block] = block.first_pos; }
  void Touch(std::span<const BlockId> blocks, const Access& /*access*/) override {
    for (const BlockId block : blocks) {
      entries_.erase(block);
    }
  }
  void Release(std::span<const BlockId> blocks, const Access& access) override {
    for (const BlockId block : blocks) {
      Entry entry{kDefaultPriority, kForGood, ++order_};
      if (access.request.retention != nullptr) {
        int32_t best = -1;
        for (int32_t pos = first_pos_[block]; pos < first_pos_[block] + kBlock; ++pos) {
          Token(*access.request.retention, pos, access.request.prompt_tokens, best, entry);
        }
        entry.until = entry.until == kForGood ? kForGood : access.now_us + entry.until;
      }
      entries_[block] = entry;
    }
  }
  void Forget(BlockId block) override { entries_.erase(block); }
  std::vector<BlockId> SelectVictims(size_t /*count*/, int64_t /*now_us*/) override { return {}; }
  void Tick(int64_t now_us) override {
    // In the order of expiry, within one in the order of release.
    std::vector<std::tuple<int64_t, uint64_t, BlockId>> over;
    for (const auto& [block, entry] : entries_) {
      if (entry.priority != kDefaultPriority && entry.until <= now_us) {
        over.emplace_back(entry.until, entry.order, block);
      }
    }
    std::sort(over.begin(), over.end());
    for (const auto& [until, order, block] : over) {
      entries_[block] = {kDefaultPriority, kForGood, ++order_};
    }
  }
  PolicyStats stats() const override { return {}; }

  std::vector<BlockId> Order() const {
    std::vector<std::tuple<int32_t, int64_t, uint64_t, BlockId>> all;
    for (const auto& [block, entry] : entries_) {
      const bool high = entry.priority > kDefaultPriority;
      all.emplace_back(entry.priority, high ? entry.until : 0, entry.order, block);
    }
    std::sort(all.begin(), all.end());
    std::vector<BlockId> blocks;
    for (const auto& [priority, until, order, block] : all) {
      blocks.push_back(block);
    }
    return blocks;
  }

 private:
  struct Entry {
    int32_t priority = 0;
    int64_t until = 0;
    uint64_t order = 0;
  };
  static void Token(const Retention& retention, int32_t pos, int32_t prompt, int32_t& best,
                    Entry& entry) {
    const auto weigh = [&](int32_t priority, int64_t duration) {
      if (priority > best || (priority == best && duration > entry.until)) {
        best = priority;
        entry.priority = priority;
        entry.until = duration;
      }
    };
    if (pos >= prompt) {
      weigh(retention.decode_priority, retention.decode_duration_us);
      return;
    }
    for (const RetentionRange& range : retention.ranges) {
      if (pos >= range.start_token && pos < range.end_token) {
        weigh(range.priority, range.duration_us);
      }
    }
  }
  std::map<BlockId, int32_t> first_pos_;
  std::map<BlockId, Entry> entries_;
  uint64_t order_ = 0;
};

TEST(RetentionPolicy, OnLruIsTheNaiveOrder) {
  int64_t compared = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const PolicyOptions options{.name = "lru", .num_blocks = 60, .block_size_tokens = kBlock};
    RetentionPolicy policy(MakeEvictionPolicy(options).value(), options);
    NaiveRetention naive;
    ToyCache cache({.seed = seed, .outspoken = true}, {&policy});
    cache.observers.push_back(&naive);
    cache.on_victims = [&](const std::vector<BlockId>& victims, int64_t now_us) {
      naive.Tick(now_us);
      std::vector<BlockId> expected = naive.Order();
      ASSERT_GE(expected.size(), victims.size());
      expected.resize(victims.size());
      ASSERT_EQ(victims, expected);
      for (const BlockId block : victims) {
        naive.Forget(block);
      }
      compared += static_cast<int64_t>(victims.size());
    };
    for (int step = 0; step < 3000; ++step) {
      ASSERT_NO_FATAL_FAILURE(cache.Step()) << "step " << step;
    }
  }
  EXPECT_GT(compared, 10000);
}

TEST(Retention, WhatIsOutOfRangeIsNamed) {
  const auto fault = [](const Retention& retention) {
    const auto valid = ValidateRetention(retention);
    return valid.has_value() ? std::string() : valid.error().message;
  };
  EXPECT_EQ(fault({}), "");
  EXPECT_EQ(fault({.ranges = {{.start_token = 0, .end_token = 5, .priority = 100}}}), "");
  EXPECT_NE(fault({.ranges = {{}, {.start_token = -1}}}).find("ranges[1].start"),
            std::string::npos);
  EXPECT_NE(fault({.ranges = {{.start_token = 5, .end_token = 5}}}).find("ranges[0].end"),
            std::string::npos);
  EXPECT_NE(fault({.ranges = {{.priority = 101}}}).find("ranges[0].priority"), std::string::npos);
  EXPECT_NE(fault({.ranges = {{.duration_us = 0}}}).find("ranges[0].duration"), std::string::npos);
  EXPECT_NE(fault({.ranges = {}, .decode_priority = -1}).find("decode_priority"),
            std::string::npos);
  EXPECT_NE(fault({.ranges = {}, .decode_duration_us = -5}).find("decode_duration"),
            std::string::npos);
  EXPECT_NE(fault({.ranges = std::vector<RetentionRange>(kMaxRetentionRanges + 1)}).find("ranges"),
            std::string::npos);
}

}  // namespace
}  // namespace kvik::kv
