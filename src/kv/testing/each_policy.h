// SPDX-License-Identifier: Apache-2.0
// kv/testing/each_policy.h: a test for every online policy there is, by name:
//
//   class Thing : public testing::TestWithParam<std::string_view> {};
//   INSTANTIATE_TEST_SUITE_P(Policies, Thing, EachPolicy(), PolicyTestName);
#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include "kv/eviction_policy.h"

namespace kvik::kv {

// All policies, and overlays on two of them.
inline auto EachPolicy() {
  std::vector<std::string_view> names(EvictionPolicyNames().begin(), EvictionPolicyNames().end());
  names.insert(names.end(), {"lru+continuum", "hazard+continuum"});
  return testing::ValuesIn(names);
}

// gtest's names have letters, digits and '_' only.
inline std::string PolicyTestName(const testing::TestParamInfo<std::string_view>& info) {
  std::string name(info.param);
  for (char& c : name) {
    c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  }
  return name;
}

}  // namespace kvik::kv
