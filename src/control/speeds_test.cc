// SPDX-License-Identifier: Apache-2.0
#include "control/speeds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "base/rng.h"
#include "control/testing/made_library.h"

namespace kvik::control {
namespace {

using ::testing::HasSubstr;

TEST(Speeds, PrintedOnesAreReadBack) {
  Rng rng(3);
  MachineSpeeds speeds = testing::RandomProfiles(rng, 9).speeds;
  speeds.Set(UniformSpeeds(kRawHash, std::numeric_limits<double>::infinity(), 5e9));
  speeds.Set(UniformSpeeds(0xFEDCBA9876543210U, 1e9, 2e9));
  const std::string text = PrintSpeeds(speeds);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const Result<MachineSpeeds> read = ParseSpeeds(text);
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(*read, speeds);
}

TEST(Speeds, AreFoundByHash) {
  MachineSpeeds speeds;
  for (const uint64_t hash : {7U, 3U, 5U}) {
    speeds.Set(UniformSpeeds(hash, static_cast<double>(hash), 1));
  }
  speeds.Set(UniformSpeeds(5, 50, 1));
  ASSERT_EQ(speeds.profiles.size(), 3U);
  EXPECT_EQ(speeds.Find(5)->encode[0].raw_bytes_per_s, 50);
  EXPECT_EQ(speeds.Find(3)->encode[4].raw_bytes_per_s, 3);
  EXPECT_EQ(speeds.Find(4), nullptr);
}

TEST(Speeds, WhatIsNotThemIsRefused) {
  MachineSpeeds speeds;
  speeds.Set(UniformSpeeds(1, 1e9, 1e9));
  const std::string good = PrintSpeeds(speeds);
  const auto refused = [&](const std::string& from, const std::string& to, const char* why) {
    std::string text = good;
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    const Result<MachineSpeeds> read = ParseSpeeds(text);
    ASSERT_FALSE(read.has_value()) << text;
    EXPECT_EQ(read.error().code, ErrorCode::kInvalidInput);
    EXPECT_THAT(read.error().message, HasSubstr(why));
  };
  refused("kvik.profile-speeds", "kvik.other", "no table");
  refused("\"version\":2", "\"version\":1", "another version");
  refused("128", "129", "other lengths");
  refused("0000000000000001", "1", "hexadecimal");
  refused("0000000000000001", "000000000000000g", "hexadecimal");
  refused("\"decode\"", "\"decoder\"", "three numbers");
  refused("1000000000.0", "-1.0", "out of range");
  refused("1000000000.0", "1e300", "out of range");
  refused("1000000000.0", "\"fast\"", "three numbers");
  refused("[0.0,1000000000.0,0.0]", "[-5.0,1000000000.0,0.0]", "out of range");
  refused("[0.0,1000000000.0,0.0]", "[0.0,1000000000.0,-1.0]", "out of range");
  refused("[0.0,1000000000.0,0.0]", "[0.0,1000000000.0,1000001.0]", "out of range");
  refused("[0.0,1000000000.0,0.0]", "[0.0,1000000000.0]", "three numbers");
  refused("[0.0,1000000000.0,0.0]", "[0.0,1000000000.0,null]", "three numbers");
  EXPECT_FALSE(ParseSpeeds("").has_value());
  EXPECT_FALSE(ParseSpeeds("[]").has_value());
  EXPECT_FALSE(ParseSpeeds(std::string(kMaxSpeedsBytes + 1, ' ')).has_value());
  std::string twice = good;
  const size_t begin = twice.find('[', twice.find("profiles")) + 1;
  const std::string item = twice.substr(begin, twice.find_last_of(']') - begin);
  twice.insert(begin, item + ",");
  EXPECT_THAT(ParseSpeeds(twice).error().message, HasSubstr("twice"));
}

}  // namespace
}  // namespace kvik::control
