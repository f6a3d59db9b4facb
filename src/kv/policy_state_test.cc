// SPDX-License-Identifier: Apache-2.0
#include "kv/policy_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "kv/testing/toy_cache.h"

namespace kvik::kv {
namespace {

using testing::HasSubstr;

constexpr int32_t kBlock = 16;

std::unique_ptr<EvictionPolicy> Make(const std::string& name) {
  return MakeEvictionPolicy({.name = name, .num_blocks = 60, .block_size_tokens = kBlock}).value();
}

std::string Learned(const std::string& name) {
  const auto policy = Make(name);
  ToyCache lessons({.seed = 1}, {policy.get()});
  for (int step = 0; step < 1000; ++step) {
    lessons.Step();
  }
  return WritePolicyState(*policy, kBlock);
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(PolicyState, WhatIsReadIsWhatWasWritten) {
  for (const std::string_view name : EvictionPolicyNames()) {
    if (!PolicyLearns(name)) {
      continue;
    }
    SCOPED_TRACE(name);
    const std::string text = Learned(std::string(name));
    const auto state = ReadPolicyState(text, std::string(name), kBlock);
    ASSERT_TRUE(state.has_value()) << state.error().message;
    const auto policy = Make(std::string(name));
    ASSERT_TRUE(policy->RestoreState(*state).has_value());
    EXPECT_EQ(WritePolicyState(*policy, kBlock), text);
  }
}

TEST(PolicyState, WhatIsNotThePolicysOwnIsRefusedWithTheReason) {
  const std::string good = Learned("hazard");
  const auto reason = [](const std::string& text, const std::string& policy, int32_t block) {
    const auto state = ReadPolicyState(text, policy, block);
    EXPECT_FALSE(state.has_value());
    EXPECT_EQ(state.error().code, ErrorCode::kInvalidInput);
    return state.error().message;
  };
  EXPECT_EQ(reason(good, "asym", kBlock), "was learned by policy hazard, not by asym");
  EXPECT_EQ(reason(good, "hazard", 32), "was learned with blocks of 16 tokens, not of 32");
  EXPECT_THAT(reason(good.substr(0, good.size() / 2), "hazard", kBlock), HasSubstr("valid JSON"));
  EXPECT_THAT(reason("", "hazard", kBlock), HasSubstr("valid JSON"));
  EXPECT_THAT(reason(std::string(1000, '['), "hazard", kBlock), HasSubstr("nests deeper"));
  for (const char* other : {"{}", "[]", "7", "{\"format\":\"kvik.policy-state\",\"version\":1}"}) {
    EXPECT_EQ(reason(other, "hazard", kBlock), "is no saved state of an eviction policy");
  }
  EXPECT_EQ(reason(Replaced(good, "\"version\":1}\n", "\"version\":2}\n"), "hazard", kBlock),
            "has a version other than 1");
  EXPECT_EQ(reason(Replaced(good, "\"policy\":\"hazard\"", "\"policy\":[]"), "hazard", kBlock),
            "was learned by policy ?, not by hazard");
  EXPECT_THAT(reason(Replaced(good, "\"bins\":34", "\"bins\":33"), "hazard", kBlock),
              HasSubstr("is damaged: "));
  EXPECT_THAT(reason(good, "no-policy", kBlock), HasSubstr("not by no-policy"));
}

}  // namespace
}  // namespace kvik::kv
