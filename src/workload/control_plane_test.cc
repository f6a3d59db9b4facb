// SPDX-License-Identifier: Apache-2.0
#include "workload/control_plane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>


namespace kvik::workload {
namespace {

TEST(ControlPlane, EvictsWhatItComputesOnceTheCacheIsFull) {
  for (const std::string_view name : kv::EvictionPolicyNames()) {
    ControlPlaneOptions options;
    options.policy.name = name;
    options.cache_blocks = 500;
    options.request_tokens = 16 * 40 + 3;
    options.requests = 10;
    const auto cost = MeasureControlPlane(options, ManualClock());
    ASSERT_TRUE(cost.has_value()) << cost.error().message;
    EXPECT_GE(cost->victims, 20) << name;  // at least the new half
    EXPECT_LE(cost->victims, 41) << name;
    EXPECT_EQ(cost->select_us + cost->policy_us + cost->cache_us, 0) << name;
  }
}

TEST(ControlPlane, RefusesWhatCannotFit) {
  ControlPlaneOptions options;
  options.cache_blocks = 100;
  EXPECT_THAT(MeasureControlPlane(options, ManualClock()).error().message,
              testing::HasSubstr("does not fit"));
}

}  // namespace
}  // namespace kvik::workload
