// SPDX-License-Identifier: Apache-2.0
#include "kv/asym_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kv/testing/toy_cache.h"

namespace kvik::kv {
namespace {

constexpr int64_t kSecond = 1'000'000;
constexpr VictimSelection kSelections[] = {VictimSelection::kAuto, VictimSelection::kScan,
                                           VictimSelection::kBatch};

PolicyOptions Options(const std::string& name, int32_t num_blocks = 60) {
  return PolicyOptions{.name = name, .num_blocks = num_blocks, .block_size_tokens = 16};
}

std::unique_ptr<EvictionPolicy> Make(const PolicyOptions& options) {
  return MakeEvictionPolicy(options).value();
}

TEST(AsymPolicy, EveryWayOfSelectingGivesTheSameVictims) {
  for (const char* name : {"asym", "asym-last", "asym-run", "max-score", "pensieve"}) {
    int64_t victims = 0;
    for (uint64_t seed = 0; seed < 10; ++seed) {
      SCOPED_TRACE(testing::Message() << name << ", seed " << seed);
      std::vector<std::unique_ptr<EvictionPolicy>> policies;
      std::vector<EvictionPolicy*> pointers;
      for (const VictimSelection selection : kSelections) {
        PolicyOptions options = Options(name);
        options.selection = selection;
        policies.push_back(Make(options));
        pointers.push_back(policies.back().get());
      }
      ToyCache cache({.seed = seed}, pointers);
      for (int step = 0; step < 3000; ++step) {
        ASSERT_NO_FATAL_FAILURE(cache.Step()) << "step " << step;
      }
      victims += cache.num_victims();
    }
    EXPECT_GT(victims, 5000) << name;
  }
}

// The rule of asym from its definition: every use of every block, the curve as it is written, and
// requests counted one by one. For a fixed lifespan and less than 30 s in all, so that nothing is
// forgotten.
class AsymByDefinition final : public EvictionPolicy {
 public:
  explicit AsymByDefinition(const PolicyOptions& options) : options_(options) {}

  [[nodiscard]] std::string_view name() const override { return "asym by definition"; }
  void Track(const TrackedBlock& tracked) override {
    blocks_[tracked.block] = {.content = tracked.content,
                              .cost = options_.cost.RecomputeUs(tracked.first_pos, 16)};
    ghosts_.erase(tracked.content);
  }
  void Hit(std::span<const BlockId> ids, const Access& access) override {
    for (const BlockId id : ids) {
      Block& block = blocks_.at(id);
      if (block.evictable) {
        Return(block);
      } else {
        block.uses_us.push_back(access.now_us);
      }
    }
  }
  void Missed(std::span<const uint64_t> contents, const Access& /*access*/) override {
    for (const uint64_t content : contents) {
      if (const auto it = ghosts_.find(content); it != ghosts_.end()) {
        Return(it->second);
      }
    }
  }
  void Touch(std::span<const BlockId> ids, const Access& /*access*/) override {
    for (const BlockId id : ids) {
      blocks_.at(id).evictable = false;
    }
  }
  void Release(std::span<const BlockId> ids, const Access& access) override {
    const bool tool = access.request.tool_call;
    const double any = (returned_[0] + returned_[1] + 1) / (departed_[0] + departed_[1] + 2);
    const double after_tool = (returned_[1] + 20 * any) / (departed_[1] + 20);
    for (const BlockId id : ids) {
      Block& block = blocks_.at(id);
      block.uses_us.push_back(access.now_us);
      block.evictable = true;
      block.tool = tool;
      block.awaits_return = id == ids.front();
      block.factor = tool ? after_tool / any : 1;
    }
    departed_[tool ? 1 : 0] += ids.empty() ? 0 : 1;
  }
  void Forget(BlockId id) override { blocks_.erase(id); }
  std::vector<BlockId> SelectVictims(size_t /*count*/, int64_t /*now_us*/) override { return {}; }
  [[nodiscard]] PolicyStats stats() const override { return {}; }

  // Checks that no evictable block is worth less, and lets it go.
  void Evict(BlockId victim, int64_t now_us) {
    const double value = Value(blocks_.at(victim), now_us);
    for (const auto& [id, block] : blocks_) {
      if (block.evictable) {
        ASSERT_LE(value, Value(block, now_us) * (1 + 1e-8)) << victim << " before " << id;
      }
    }
    ghosts_[blocks_.at(victim).content] = blocks_.at(victim);
    blocks_.erase(victim);
  }

 private:
  struct Block {
    uint64_t content = 0;
    double cost = 0;
    bool evictable = false;
    bool tool = false;
    bool awaits_return = false;
    double factor = 1;
    std::vector<int64_t> uses_us{};
  };

  void Return(Block& block) {
    returned_[block.tool ? 1 : 0] += block.awaits_return ? 1 : 0;
    block.awaits_return = false;
  }
  [[nodiscard]] double Value(const Block& block, int64_t now_us) const {
    const double p = options_.reuse_prob;
    const double alpha = -std::log(p) / options_.lifespan_s;
    double f1 = 0;
    double f2 = 0;
    for (const int64_t t : block.uses_us) {
      const double x = static_cast<double>(now_us - t) * 1e-6;
      f1 += std::exp(-alpha * x);
      f2 += p * std::exp(-options_.slope_ratio * alpha * (x - options_.lifespan_s));
    }
    return block.factor * block.cost * std::min(f1, f2);
  }

  PolicyOptions options_;
  std::map<BlockId, Block> blocks_;
  std::map<uint64_t, Block> ghosts_;
  double departed_[2] = {};
  double returned_[2] = {};
};

TEST(AsymPolicy, VictimsAreTheLeastByDefinition) {
  int64_t victims = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    PolicyOptions options = Options("asym", 100);
    options.lifespan_s = 0.2;
    options.slope_ratio = 10;
    const auto policy = Make(options);
    AsymByDefinition definition(options);
    // Dear positions, so that cost and age both matter.
    ToyCache cache({.seed = seed, .num_blocks = 100, .conversations = 40, .max_pause_s = 0.2},
                   {policy.get()});
    cache.observers.push_back(&definition);
    cache.on_victims = [&](const std::vector<BlockId>& ids, int64_t now_us) {
      for (const BlockId id : ids) {
        ASSERT_NO_FATAL_FAILURE(definition.Evict(id, now_us));
      }
    };
    while (cache.now_us() < 30 * kSecond) {
      ASSERT_NO_FATAL_FAILURE(cache.Step());
    }
    victims += cache.num_victims();
  }
  std::printf("%lld victims\n", static_cast<long long>(victims));
  EXPECT_GT(victims, 10'000);
}

// Costs that do not depend on the position.
CostModel Flat() { return CostModel{.token_us = 100}; }

TEST(AsymPolicy, WithEqualCostsAndSingleUsesItIsExactlyLru) {
  for (const char* name : {"asym", "asym-last", "max-score"}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      SCOPED_TRACE(testing::Message() << name << ", seed " << seed);
      PolicyOptions options = Options(name);
      if (options.name != "max-score") {  // which has no cost to be equal
        options.cost = Flat();
      }
      const auto policy = Make(options);
      const auto lru = Make(Options("lru"));
      ToyCache cache(
          {.seed = seed, .conversations = 300, .shared = 0, .tool_calls = false, .reuse = false},
          {policy.get(), lru.get()});
      for (int step = 0; step < 3000; ++step) {
        ASSERT_NO_FATAL_FAILURE(cache.Step());
      }
      EXPECT_GT(cache.num_victims(), 500);
    }
  }
}

TEST(AsymPolicy, WithEqualCostsAndOnlyTheLastUseItIsLruEvenWhenItLearns) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    PolicyOptions options = Options("asym-last");
    options.cost = Flat();
    AsymPolicy policy(options, kAsymLast);
    const auto lru = Make(Options("lru"));
    ToyCacheOptions toy{.seed = seed, .tool_calls = false};
    ToyCache cache(toy, {&policy, lru.get()});
    bool learned = false;
    for (int step = 0; step < 6000; ++step) {
      ASSERT_NO_FATAL_FAILURE(cache.Step());
      learned = learned || policy.index().curve(0).lifespan_s() != 600;
    }
    EXPECT_TRUE(learned) << "no change of the curve happened";
  }
}

// One conversation of `blocks` blocks at `first`, let go of at `now_us`.
void Converse(EvictionPolicy& policy, BlockId first, int32_t blocks, int64_t now_us,
              bool tool_call = false) {
  std::vector<BlockId> released;
  for (BlockId id = first + blocks - 1; id >= first; --id) {
    policy.Track({.block = id, .first_pos = (id - first) * 1600, .content = 1000 + uint64_t(id)});
    released.push_back(id);
  }
  policy.Release(released, {.now_us = now_us, .request = {.tool_call = tool_call}});
}

std::vector<BlockId> Sorted(std::vector<BlockId> ids) {
  std::sort(ids.begin(), ids.end());
  return ids;
}

TEST(AsymPolicy, KeepsTheSharedBeginningAndTheDearEnd) {
  const auto policy = Make(Options("asym", 10));
  Converse(*policy, 0, 10, 0);
  // Others use the first two blocks again and again.
  for (int64_t i = 1; i <= 20; ++i) {
    const std::vector<BlockId> beginning = {0, 1};
    policy->Hit(beginning, {.now_us = i * kSecond});
    policy->Touch(beginning, {.now_us = i * kSecond});
    policy->Release(std::vector<BlockId>{1, 0}, {.now_us = i * kSecond});
  }
  EXPECT_THAT(policy->SelectVictims(4, 30 * kSecond), testing::ElementsAre(2, 3, 4, 5));
}

TEST(AsymPolicy, AfterALifespanAConversationGoesBeforeACheaperLiveOne) {
  PolicyOptions options = Options("asym", 20);
  options.lifespan_s = 100;
  const auto policy = Make(options);
  Converse(*policy, 0, 10, 0);
  Converse(*policy, 10, 3, 110 * kSecond);
  EXPECT_THAT(Sorted(policy->SelectVictims(10, 115 * kSecond)),
              testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST(AsymPolicy, ToolCallsThatReturnMoreOftenKeepTheirBlocks) {
  PolicyOptions options = Options("asym", 20);
  options.lifespan_s = 1000;
  AsymPolicy policy(options, kAsym);
  int64_t now_us = 0;
  // After a tool call the request returns within a second, else never.
  for (int i = 0; i < 100; ++i) {
    now_us += kSecond / 10;
    Converse(policy, 0, 2, now_us, true);
    policy.Hit(std::vector<BlockId>{0, 1}, {.now_us = now_us});
    policy.Forget(0);
    policy.Forget(1);
    Converse(policy, 0, 2, now_us, false);
    policy.Forget(0);
    policy.Forget(1);
  }
  EXPECT_NEAR(policy.statistics().LnReturnFactor(ReuseClass::kTool), std::log(2), 0.2);
  EXPECT_EQ(policy.statistics().LnReturnFactor(ReuseClass::kChat), 0);
  Converse(policy, 0, 4, now_us, true);
  Converse(policy, 10, 4, now_us + kSecond, false);
  EXPECT_THAT(Sorted(policy.SelectVictims(4, now_us + 2 * kSecond)),
              testing::ElementsAre(10, 11, 12, 13))
      << "though the others were let go of before, and cost no more";
}

TEST(AsymPolicy, GhostsAreBoundedAndTeachTheLifespan) {
  AsymPolicy policy(Options("asym", 4), kAsym);
  const size_t capacity = policy.statistics().ghosts().capacity();
  for (uint64_t content = 0; content < 2 * capacity; ++content) {
    policy.Track({.block = 0, .content = Rng(content).Next()});
    policy.Release(std::vector<BlockId>{0}, {.now_us = 0});
    ASSERT_THAT(policy.SelectVictims(1, 0), testing::ElementsAre(0));
  }
  EXPECT_EQ(policy.statistics().ghosts().size(), capacity);
  policy.Tick(0);
  // Every one was evicted at once, and all that are known return after 40 s.
  for (uint64_t content = capacity; content < capacity + 300; ++content) {
    policy.Missed(std::vector<uint64_t>{Rng(content).Next()}, {.now_us = 40 * kSecond});
  }
  policy.Tick(41 * kSecond);
  EXPECT_NEAR(policy.statistics().lifespan_s(ReuseClass::kChat), 40, 2);
  EXPECT_EQ(policy.statistics().lifespan_s(ReuseClass::kTool), 60);
  EXPECT_NEAR(policy.index().curve(0).lifespan_s(), 40, 2);

  AsymPolicy pupil(Options("asym", 4), kAsym);
  ASSERT_TRUE(pupil.RestoreState(policy.SaveState()));
  pupil.Tick(0);
  EXPECT_EQ(pupil.index().curve(0).lifespan_s(), policy.index().curve(0).lifespan_s());
}

TEST(AsymPolicy, MaxScoreUsesPrefixesAndIgnoresTheCost) {
  const auto policy = Make(Options("max-score", 10));
  EXPECT_EQ(policy->hits(), HitScope::kPrefix);
  Converse(*policy, 0, 6, 0);
  EXPECT_THAT(policy->SelectVictims(3, kSecond), testing::ElementsAre(5, 4, 3));
}

TEST(PensievePolicy, CostOverIdleTime) {
  const auto policy = Make(Options("pensieve", 10));
  EXPECT_EQ(policy->hits(), HitScope::kGaps);
  Converse(*policy, 0, 3, 0);
  Converse(*policy, 5, 3, 90 * kSecond);
  // At 100 s: costs about 111 : 120 : 130, idle 100 s and 10 s.
  EXPECT_THAT(policy->SelectVictims(4, 100 * kSecond), testing::ElementsAre(0, 1, 2, 5));
}

TEST(ReusePolicies, OptionsOutOfRangeAreNamed) {
  const auto message = [](auto&& change) {
    PolicyOptions options = Options("asym");
    change(options);
    const auto result = MakeEvictionPolicy(options);
    return result.has_value() ? "" : result.error().message;
  };
  EXPECT_THAT(message([](PolicyOptions& o) { o.lifespan_s = -1; }), testing::HasSubstr("lifespan"));
  EXPECT_THAT(message([](PolicyOptions& o) { o.lifespan_s = INFINITY; }),
              testing::HasSubstr("lifespan"));
  EXPECT_THAT(message([](PolicyOptions& o) { o.reuse_prob = 1; }),
              testing::HasSubstr("reuse probability"));
  EXPECT_THAT(message([](PolicyOptions& o) { o.reuse_prob = NAN; }),
              testing::HasSubstr("reuse probability"));
  EXPECT_THAT(message([](PolicyOptions& o) { o.slope_ratio = 1; }),
              testing::HasSubstr("slope ratio"));
}

}  // namespace
}  // namespace kvik::kv
