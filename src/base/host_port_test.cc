// SPDX-License-Identifier: Apache-2.0
#include "base/host_port.h"

#include <gtest/gtest.h>

namespace kvik {
namespace {

TEST(JoinHostPort, OnlyBareIpv6IsPutInBrackets) {
  EXPECT_EQ(JoinHostPort("10.0.0.5", "41317"), "10.0.0.5:41317");
  EXPECT_EQ(JoinHostPort("node.example", "*"), "node.example:*");
  EXPECT_EQ(JoinHostPort("::1", "8000"), "[::1]:8000");
  EXPECT_EQ(JoinHostPort("[::1]", "8000"), "[::1]:8000");
  EXPECT_EQ(JoinHostPort("", "8000"), ":8000");
}

}  // namespace
}  // namespace kvik
