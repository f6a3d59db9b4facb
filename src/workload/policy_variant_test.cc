// SPDX-License-Identifier: Apache-2.0
#include "workload/policy_variant.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvik::workload {
namespace {

using kv::VictimSelection;
using testing::HasSubstr;

TEST(PolicyVariant, APlainNameTakesWhatIsShared) {
  kv::PolicyOptions shared;
  shared.selection = VictimSelection::kBatch;
  shared.lifespan_s = 7;
  const auto variant = ParsePolicyVariant("lru");
  ASSERT_TRUE(variant.has_value());
  const kv::PolicyOptions options = OptionsOf(*variant, shared, 100);
  EXPECT_EQ(options.name, "lru");
  EXPECT_EQ(options.selection, VictimSelection::kBatch);
  EXPECT_EQ(options.lifespan_s, 7);
  EXPECT_FALSE(IsOffline(*variant));
}

TEST(PolicyVariant, WordsAfterAtSetItUp) {
  const auto variant = ParsePolicyVariant("asym@scan@p99x0.5");
  ASSERT_TRUE(variant.has_value());
  EXPECT_EQ(variant->label, "asym@scan@p99x0.5");
  const kv::PolicyOptions options = OptionsOf(*variant, {}, 100);
  EXPECT_EQ(options.name, "asym");
  EXPECT_EQ(options.selection, VictimSelection::kScan);
  EXPECT_EQ(options.lifespan_s, 50);
  EXPECT_EQ(ParsePolicyVariant("asym@p99")->lifespan_in_p99, 1);
  EXPECT_EQ(ParsePolicyVariant("pensieve@batch")->selection, VictimSelection::kBatch);
}

TEST(PolicyVariant, WhoKnowsTheWholeTraceIsOffline) {
  EXPECT_TRUE(IsOffline(*ParsePolicyVariant("asym@p99")));
  EXPECT_TRUE(IsOffline(*ParsePolicyVariant("belady")));
  EXPECT_TRUE(IsOffline(*ParsePolicyVariant("bound")));
  EXPECT_FALSE(IsOffline(*ParsePolicyVariant("asym@scan")));
}

TEST(PolicyVariant, OtherWordsAreRefused) {
  for (const char* text : {"asym@", "asym@p9", "asym@p99x", "asym@p99x0", "asym@p99y2",
                           "asym@p99x-1", "asym@p99xnan", "asym@p99x2s", "asym@scan@", "@@"}) {
    const auto variant = ParsePolicyVariant(text);
    ASSERT_FALSE(variant.has_value()) << text;
    EXPECT_THAT(variant.error().message, HasSubstr("after @ comes")) << text;
  }
}

TEST(PolicyVariant, P99IsOfAllGapsBetweenUsesOfABlock) {
  Trace trace;
  EXPECT_EQ(ReuseGapP99(trace), 0);
  for (int64_t i = 0; i <= 100; ++i) {
    TraceRequest request;
    request.arrival_us = i * (i + 1) / 2 * 1000000;  // gaps of 1, 2, ..., 100 s
    request.blocks = {1};
    trace.requests.push_back(request);
  }
  EXPECT_NEAR(ReuseGapP99(trace), 99.01, 1e-6);
}

}  // namespace
}  // namespace kvik::workload
