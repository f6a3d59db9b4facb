// SPDX-License-Identifier: Apache-2.0
// What holds for every eviction policy there is.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "kv/eviction_policy.h"
#include "kv/testing/toy_cache.h"

namespace kvik::kv {
namespace {

class EveryPolicy : public testing::TestWithParam<std::string_view> {};

// The toy cache checks the accounting after every step, that no held block is chosen and none
// twice, and that both copies choose the same.
TEST_P(EveryPolicy, IsDeterministicCountsExactlyAndNeverTakesAHeldBlock) {
  int64_t victims = 0;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const PolicyOptions options{
        .name = std::string(GetParam()), .num_blocks = 60, .block_size_tokens = 16, .seed = seed};
    const auto policy = MakeEvictionPolicy(options).value();
    const auto copy = MakeEvictionPolicy(options).value();
    ToyCache cache({.seed = seed}, {policy.get(), copy.get()});
    for (int step = 0; step < 2000; ++step) {
      ASSERT_NO_FATAL_FAILURE(cache.Step()) << "step " << step;
    }
    victims += cache.num_victims();
  }
  EXPECT_GT(victims, 1000);
}

TEST_P(EveryPolicy, StartsFromWhatAnotherInstanceSaved) {
  const PolicyOptions options{
      .name = std::string(GetParam()), .num_blocks = 60, .block_size_tokens = 16};
  const auto teacher = MakeEvictionPolicy(options).value();
  ToyCache lessons({.seed = 1}, {teacher.get()});
  for (int step = 0; step < 3000; ++step) {
    ASSERT_NO_FATAL_FAILURE(lessons.Step());
  }
  const std::string state = teacher->SaveState();
  const auto policy = MakeEvictionPolicy(options).value();
  ASSERT_TRUE(policy->RestoreState(state));
  EXPECT_EQ(policy->SaveState(), state);
  EXPECT_FALSE(policy->RestoreState("no state of any policy").has_value());
  ToyCache cache({.seed = 2}, {policy.get()});
  for (int step = 0; step < 1000; ++step) {
    ASSERT_NO_FATAL_FAILURE(cache.Step());
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicy,
                         testing::ValuesIn(EvictionPolicyNames().begin(),
                                           EvictionPolicyNames().end()),
                         [](const auto& param) {
                           std::string name(param.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace kvik::kv
