// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <gtest/gtest.h>

#include <string>

namespace kvik {
namespace {

TEST(Log, WritesOneLineAboveTheLevelOnly) {
  testing::internal::CaptureStderr();
  LogDebug("hidden");
  LogWarning("slot %d: %s", 3, "a\nb\x1b[31m {} ü");
  SetLogLevel(LogLevel::kOff);
  LogError("hidden too");
  SetLogLevel(LogLevel::kInfo);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find("hidden"), std::string::npos) << text;
  EXPECT_NE(text.find("warning slot 3: a\\x0ab\\x1b[31m {} ü\n"), std::string::npos) << text;
}

TEST(Log, LevelsParse) {
  EXPECT_EQ(ParseLogLevel("debug"), LogLevel::kDebug);
  EXPECT_EQ(ParseLogLevel("off"), LogLevel::kOff);
  EXPECT_EQ(ParseLogLevel("loud"), std::nullopt);
  EXPECT_TRUE(LogEnabled(LogLevel::kInfo));
  EXPECT_FALSE(LogEnabled(LogLevel::kDebug));
  EXPECT_FALSE(LogEnabled(LogLevel::kOff));
}

}  // namespace
}  // namespace kvik
