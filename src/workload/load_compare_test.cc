// SPDX-License-Identifier: Apache-2.0
#include "workload/load_compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "workload/distributions.h"

namespace kvik::workload {
namespace {

// Requests whose time to first token is a common part times `factor`, and noise of its own.
LoadSamples Samples(double factor, uint64_t seed, int32_t requests = 60, int32_t first = 0) {
  LoadSamples samples;
  Rng common(1);
  Rng noise(seed, 2);
  for (int32_t i = 0; i < requests; ++i) {
    RequestSample sample;
    sample.session = first + i;
    sample.ttft_ms = factor * DrawLogNormal(common, 100, 1) * DrawLogNormal(noise, 1, 0.05);
    sample.e2e_ms = sample.ttft_ms + 10;
    sample.prompt_tokens = 100;
    sample.cached_tokens = 50;
    samples.requests.push_back(sample);
  }
  return samples;
}

MetricComparison Find(const std::vector<MetricComparison>& metrics, const std::string& name) {
  for (const MetricComparison& metric : metrics) {
    if (metric.metric == name) {
      return metric;
    }
  }
  ADD_FAILURE() << "no " << name;
  return {};
}

TEST(Compare, PairsMakeTheIntervalNarrow) {
  const LoadSamples a = Samples(1, 1);
  const LoadSamples b = Samples(1.1, 2);
  const MetricComparison paired = Find(Compare(a, b, {}), "ttft_ms mean");
  EXPECT_TRUE(paired.paired);
  EXPECT_EQ(paired.samples, 60);
  EXPECT_LT(paired.low, 1.1);
  EXPECT_GT(paired.high, 1.1);
  EXPECT_GT(paired.low, 1.0) << "10 % are seen through noise of 5 %";
  LoadSamples others = b;
  for (RequestSample& sample : others.requests) {
    sample.session += 1000;
  }
  const MetricComparison unpaired = Find(Compare(a, others, {}), "ttft_ms mean");
  EXPECT_FALSE(unpaired.paired);
  EXPECT_DOUBLE_EQ(unpaired.ratio, paired.ratio);
  EXPECT_LT(unpaired.low, 1.0);
  EXPECT_GT(unpaired.high - unpaired.low, 4 * (paired.high - paired.low));
}

TEST(Compare, TheIntervalHoldsTheTruthAboutAsOftenAsItSays) {
  int held = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const MetricComparison m = Find(
        Compare(Samples(1, 2 * seed), Samples(1, 2 * seed + 1), {.resamples = 300, .seed = seed}),
        "ttft_ms mean");
    held += m.low <= 1 && 1 <= m.high ? 1 : 0;
  }
  EXPECT_GE(held, 170);
  EXPECT_LE(held, 199);
}

TEST(Compare, AFewMissingRequestsDoNotUndoThePairs) {
  const LoadSamples a = Samples(1, 1);
  LoadSamples b = Samples(1, 1);
  b.requests.erase(b.requests.begin(), b.requests.begin() + 6);
  const MetricComparison m = Find(Compare(a, b, {}), "ttft_ms mean");
  EXPECT_TRUE(m.paired);
  EXPECT_EQ(m.samples, 54);
  EXPECT_DOUBLE_EQ(m.ratio, 1);
  b.requests.erase(b.requests.begin());
  EXPECT_FALSE(Find(Compare(a, b, {}), "ttft_ms mean").paired);
}

TEST(Compare, SaysNothingOfWhatASideDoesNotHave) {
  LoadSamples a = Samples(1, 1);
  LoadSamples b = Samples(1, 1);
  b.requests[0].cached_tokens = 80;
  EXPECT_NEAR(Find(Compare(a, b, {}), "hit_rate").ratio, 1.01, 1e-9);
  for (const MetricComparison& metric : Compare(a, b, {})) {
    EXPECT_THAT(metric.metric, testing::Not(testing::StartsWith("tpot")));
    EXPECT_THAT(metric.metric, testing::Not(testing::StartsWith("job")));
  }
  EXPECT_TRUE(Compare(a, LoadSamples(), {}).empty());
  a.jobs = {{0, 100}, {1, 200}};
  b.jobs = {{0, 200}, {1, 400}};
  EXPECT_DOUBLE_EQ(Find(Compare(a, b, {}), "job_ms mean").ratio, 2);
  EXPECT_THAT(FormatComparison(Compare(a, b, {}), 0.95), testing::HasSubstr("95 % interval"));
}

}  // namespace
}  // namespace kvik::workload
