// SPDX-License-Identifier: Apache-2.0
#include "workload/control_plane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

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

// Every look at the clock takes a microsecond, so times are counts of calls.
class TickingClock final : public Clock {
 public:
  [[nodiscard]] int64_t NowMicros() const override { return now_us_++; }

 private:
  mutable int64_t now_us_ = 0;
};

TEST(ControlPlane, TellsTheMeanAfterEveryRequestFromAnEmptyCacheOn) {
  ControlPlaneOptions options;
  options.policy.name = "lru";
  options.cache_blocks = 200;
  options.request_tokens = 16 * 40;
  options.requests = 12;
  options.warmup = false;
  std::vector<double> sums_us;
  double last_victims = 0;
  const auto cost = MeasureControlPlane(options, TickingClock(),
                                        [&](int32_t requests, const ControlPlaneCost& so_far) {
                                          EXPECT_EQ(requests, sums_us.size() + 1);
                                          sums_us.push_back(so_far.total_us() * requests);
                                          last_victims = so_far.victims;
                                          if (requests <= 4) {
                                            EXPECT_EQ(so_far.victims, 0) << "nothing is full yet";
                                          }
                                        });
  ASSERT_TRUE(cost.has_value()) << cost.error().message;
  ASSERT_EQ(sums_us.size(), 12U);
  EXPECT_TRUE(std::is_sorted(sums_us.begin(), sums_us.end()));
  EXPECT_GT(sums_us.front(), 0);
  EXPECT_GT(last_victims, 0);
  EXPECT_DOUBLE_EQ(cost->total_us() * 12, sums_us.back());
}

TEST(ControlPlane, RefusesWhatCannotFit) {
  ControlPlaneOptions options;
  options.cache_blocks = 100;
  EXPECT_THAT(MeasureControlPlane(options, ManualClock()).error().message,
              testing::HasSubstr("does not fit"));
}

}  // namespace
}  // namespace kvik::workload
