// SPDX-License-Identifier: Apache-2.0
#include "workload/control_plane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "workload/long_context_trace.h"

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

TEST(LongContextTrace, TurnsExtendEachOtherAndShareOnlyTheHead) {
  LongContextOptions options = *LongContextNamed("longbench:5");
  options.requests = 40;
  options.seed = 3;
  const LongContextLoad load = MakeLongContext(options);
  const Trace trace = TraceOf(load, 64);
  ASSERT_EQ(trace.requests.size(), 40U);
  std::vector<const TraceRequest*> last(load.sessions.size(), nullptr);
  int64_t before_us = std::numeric_limits<int64_t>::min();
  for (const TraceRequest& request : trace.requests) {
    EXPECT_GE(request.arrival_us, before_us);
    before_us = request.arrival_us;
    EXPECT_EQ(request.blocks.size(), static_cast<size_t>(request.input_tokens / 64));
    const TraceRequest*& previous = last[static_cast<size_t>(request.session)];
    EXPECT_EQ(request.turn, previous == nullptr ? 1 : previous->turn + 1);
    if (previous != nullptr) {
      EXPECT_EQ(request.arrival_us, previous->arrival_us + request.gap_us);
      EXPECT_GE(request.input_tokens, previous->input_tokens + previous->output_tokens);
      EXPECT_TRUE(
          std::equal(previous->blocks.begin(), previous->blocks.end(), request.blocks.begin()));
    }
    previous = &request;
    for (const TraceRequest* other : last) {
      if (other != nullptr && other->session != request.session) {
        const size_t common =
            static_cast<size_t>(std::mismatch(request.blocks.begin(), request.blocks.end(),
                                              other->blocks.begin(), other->blocks.end())
                                    .first -
                                request.blocks.begin());
        EXPECT_EQ(common, std::min({static_cast<size_t>(load.shared_tokens / 64),
                                    request.blocks.size(), other->blocks.size()}));
      }
    }
  }
  EXPECT_EQ(TraceOf(MakeLongContext(options), 64).requests.back().arrival_us,
            trace.requests.back().arrival_us);
}

}  // namespace
}  // namespace kvik::workload
