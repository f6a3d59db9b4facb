// SPDX-License-Identifier: Apache-2.0
#include "kv/residency_sampler.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"
#include "kv/kv_cache.h"

namespace kvik::kv {
namespace {

std::vector<int64_t> Of(ResidencyEvent event, const std::vector<ResidencySample>& samples) {
  std::vector<int64_t> durations;
  for (const ResidencySample& sample : samples) {
    if (sample.event == event) {
      durations.push_back(sample.duration_us);
    }
  }
  return durations;
}

TEST(ResidencySampler, TellsGapsLifetimesAndIdleTimes) {
  ResidencySampler sampler(1, 2);
  sampler.Published(0, 11, 100);
  sampler.Published(1, 12, 150);
  sampler.Used(0, 300);
  sampler.Used(0, 1000);
  sampler.Evicted(0, 5000);
  std::vector<ResidencySample> samples = sampler.Take();
  EXPECT_EQ(Of(ResidencyEvent::kReuseGap, samples), (std::vector<int64_t>{200, 700}));
  EXPECT_EQ(Of(ResidencyEvent::kLifetime, samples), (std::vector<int64_t>{4900}));
  EXPECT_EQ(Of(ResidencyEvent::kIdleBeforeEvict, samples), (std::vector<int64_t>{4000}));
  EXPECT_TRUE(sampler.Take().empty());
  sampler.Published(0, 13, 6000);  // the slot's next life
  sampler.Evicted(0, 6001);
  sampler.Evicted(1, 6150);
  samples = sampler.Take();
  EXPECT_EQ(Of(ResidencyEvent::kLifetime, samples), (std::vector<int64_t>{1, 6000}));
  EXPECT_EQ(Of(ResidencyEvent::kIdleBeforeEvict, samples), (std::vector<int64_t>{1, 6000}));
}

TEST(ResidencySampler, WatchesTheShareAndTheSameContentsEveryTime) {
  for (const double share : {0.0, 0.01, 0.3, 1.0}) {
    ResidencySampler sampler(share, 1);
    ResidencySampler again(share, 1);
    Rng rng(7);
    int watched = 0;
    for (int i = 0; i < 20000; ++i) {
      const uint64_t content = rng.Next();
      for (ResidencySampler* s : {&sampler, &again}) {
        s->Published(0, content, i);
        s->Evicted(0, i + 5);
      }
      const size_t seen = sampler.Take().size();
      watched += seen > 0 ? 1 : 0;
      EXPECT_EQ(again.Take().size(), seen);
    }
    EXPECT_NEAR(watched, 20000 * share, 4 * 141 * share + 30) << share;
  }
}

// Every block that was published is evicted or still there, and every hit has a gap.
TEST(ResidencySampler, TheCacheTellsItEverything) {
  CacheOptions options;
  options.num_blocks = 12;
  options.policy.name = "lru";
  options.residency_share = 1;
  const auto cache = KvCache::Create(options).value();
  Rng rng(1);
  size_t gaps = 0;
  size_t lives = 0;
  size_t hit_blocks = 0;
  for (int i = 0; i < 300; ++i) {
    cache->AdvanceTime(1000 * i);
    Sequence sequence(std::vector<TokenId>(static_cast<size_t>(rng.Range(16, 120)),
                                           static_cast<TokenId>(rng.Below(3))),
                      {}, 16);
    ASSERT_EQ(cache->Admit(sequence, cache->Plan(sequence, sequence.num_tokens())),
              AdmitOutcome::kAdmitted);
    hit_blocks += static_cast<size_t>(sequence.num_hit_tokens() / 16);
    const auto runs = sequence.NextRuns(sequence.num_tokens());
    cache->Allocate(sequence, runs);
    cache->Commit(sequence, runs);
    cache->Release(sequence);
    if (i % 50 == 49) {
      (void)cache->EvictAtRandom(rng, 0.5);
    }
    const std::vector<ResidencySample> samples = cache->TakeResidencySamples();
    gaps += Of(ResidencyEvent::kReuseGap, samples).size();
    lives += Of(ResidencyEvent::kLifetime, samples).size();
    for (const ResidencySample& sample : samples) {
      ASSERT_GE(sample.duration_us, 0);
      ASSERT_EQ(sample.duration_us % 1000, 0);
    }
  }
  EXPECT_EQ(gaps, hit_blocks);
  EXPECT_GT(gaps, 100U);
  EXPECT_EQ(lives, static_cast<size_t>(cache->stats().evictions));
  EXPECT_GT(lives, 100U);

  options.residency_share = 1.5;
  EXPECT_EQ(KvCache::Create(options).error().code, ErrorCode::kInvalidInput);
}

}  // namespace
}  // namespace kvik::kv
