// SPDX-License-Identifier: Apache-2.0
#include "base/outage.h"

#include <gtest/gtest.h>

#include <string>

namespace kvik {
namespace {

std::string Said(Outage& outage, int failures, int successes) {
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < failures; ++i) {
    outage.Failed(Err(ErrorCode::kUnavailable, "no route %d", i));
  }
  for (int i = 0; i < successes; ++i) {
    outage.Worked();
  }
  return ::testing::internal::GetCapturedStderr();
}

TEST(Outage, EachIsSaidOnce) {
  Outage outage("pool a");
  EXPECT_EQ(Said(outage, 0, 3), "");
  const std::string gone = Said(outage, 3, 0);
  EXPECT_NE(gone.find("warning pool a does not work, and is done without: no route 0\n"),
            std::string::npos)
      << gone;
  EXPECT_EQ(gone.find("no route 1"), std::string::npos) << gone;
  EXPECT_EQ(Said(outage, 2, 0), "");
  const std::string back = Said(outage, 0, 2);
  EXPECT_EQ(back.find("works again"), back.rfind("works again"));
  EXPECT_NE(back.find("info pool a works again\n"), std::string::npos) << back;
  EXPECT_NE(Said(outage, 1, 0).find("no route 0"), std::string::npos);
}

}  // namespace
}  // namespace kvik
