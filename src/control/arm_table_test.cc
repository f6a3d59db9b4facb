// SPDX-License-Identifier: Apache-2.0
#include "control/arm_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/rng.h"
#include "control/testing/made_library.h"

namespace kvik::control {
namespace {

using ::testing::HasSubstr;
using testing::MadeProfile;
using testing::MadeQuality;

codec::ProfileLibrary Library() {
  codec::ProfileLibrary library;
  library.profiles = {
      MadeProfile("balanced", 1, 6, {MadeQuality("math", 0.98), MadeQuality("unified", 0.96)}),
      MadeProfile("lossless", 2, 1.5, {}),
      MadeProfile("small", 3, 12, {MadeQuality("math", 0.955), MadeQuality("unified", 0.93)}),
  };
  return library;
}

MachineSpeeds Speeds(double encode, double decode) {
  MachineSpeeds speeds;
  for (const uint64_t hash : {1U, 2U, 3U}) {
    speeds.Set(UniformSpeeds(hash, encode, decode));
  }
  return speeds;
}

ArmTable BuildOrDie(const codec::ProfileLibrary* library, const MachineSpeeds& sender,
                    const MachineSpeeds& receiver, const ArmTableOptions& options = {}) {
  return ArmTable::Build(library, sender, receiver, options).value();
}

TEST(ArmTable, TakesEncodingFromTheSenderAndDecodingFromTheReceiver) {
  const codec::ProfileLibrary library = Library();
  const ArmTable table = BuildOrDie(&library, Speeds(1e9, 7), Speeds(9, 2e9));
  ASSERT_EQ(table.arms().size(), 4U);
  EXPECT_EQ(table.arm(kRawArm).name, "raw");
  EXPECT_EQ(table.arm(kRawArm).cost[2].encode_us_per_byte, 0);
  const int32_t arm = table.Find("balanced").value();
  EXPECT_EQ(table.FindHash(1), arm);
  EXPECT_NEAR(table.arm(arm).cost[0].encode_us_per_byte, 1e-3, 1e-15);
  EXPECT_NEAR(table.arm(arm).cost[0].decode_us_per_byte, 0.5e-3, 1e-15);
  EXPECT_NEAR(table.arm(arm).cost[0].wire_bytes, 1 / 6.0, 1e-15);
  EXPECT_FALSE(table.Find("no").has_value());
}

TEST(ArmTable, ALibraryIsNotNeeded) {
  MachineSpeeds speeds;
  speeds.Set(UniformSpeeds(77, 2e9, 3e9));
  const ArmTable table = BuildOrDie(
      nullptr, speeds, speeds, {.exact_profiles = {{"lossless", 77, 1.45}, {"unmeasured", 78, 2}}});
  ASSERT_EQ(table.arms().size(), 2U);
  EXPECT_EQ(table.num_classes(), 1);
  EXPECT_EQ(table.MaskOfClass(table.ClassOf(table.Workload("math"), {true, 0.1F})), 0b11U);
  EXPECT_EQ(BuildOrDie(nullptr, {}, {}).arms().size(), 1U);
}

TEST(ArmTable, WhatOneEndCannotDoIsNoArm) {
  const codec::ProfileLibrary library = Library();
  MachineSpeeds receiver = Speeds(1e9, 1e9);
  receiver.profiles.pop_back();
  EXPECT_FALSE(BuildOrDie(&library, Speeds(1e9, 1e9), receiver).Find("small").has_value());
}

TEST(ArmTable, UnknownLabelsAreJudgedByTheUnifiedSectionAndAliasesByTheirLabel) {
  const codec::ProfileLibrary library = Library();
  const ArmTable table = BuildOrDie(&library, Speeds(1e9, 1e9), Speeds(1e9, 1e9),
                                    {.aliases = {{"gsm8k", "math"}, {"poems", "poetry"}}});
  EXPECT_EQ(table.Workload("retrieval"), kUnified);
  EXPECT_EQ(table.Workload(""), kUnified);
  EXPECT_EQ(table.Workload("poems"), kUnified);
  EXPECT_NE(table.Workload("math"), kUnified);
  EXPECT_EQ(table.Workload("gsm8k"), table.Workload("math"));
  const int32_t balanced = table.Find("balanced").value();
  EXPECT_FLOAT_EQ(table.Quality(balanced, table.Workload("gsm8k")).q, 0.98F);
  EXPECT_FLOAT_EQ(table.Quality(balanced, table.Workload("retrieval")).q, 0.96F);
}

TEST(ArmTable, QualityIsTheLowerBoundAndNeverRoundsUp) {
  codec::ProfileLibrary library;
  library.profiles = {MadeProfile("p", 1, 2, {MadeQuality("unified", 0.97)})};
  // Just below the float that a request for 0.97 names.
  const ArmTable table = BuildOrDie(&library, Speeds(1e9, 1e9), Speeds(1e9, 1e9));
  const kv::BlockQuality quality = table.Quality(table.Find("p").value(), kUnified);
  EXPECT_LE(static_cast<double>(quality.q), 0.97);
  EXPECT_EQ(quality.fidelity, kv::Fidelity::kLossy);
  EXPECT_EQ(table.ClassOf(kUnified, {true, 0.97F}), 0);
  EXPECT_EQ(table.ClassOf(kUnified, {true, 0.9699F}), 1);
  EXPECT_EQ(table.ClassOf(kUnified, {true, std::numeric_limits<float>::quiet_NaN()}), 0);
}

TEST(ArmTable, UnmeasuredAndMaskedProfilesAreNoArms) {
  codec::ProfileLibrary library = Library();
  library.profiles[0].quality.clear();  // lossy, but nobody measured how
  library.profiles[2].fidelity = codec::Fidelity::kMasked;
  const ArmTable table = BuildOrDie(&library, Speeds(1e9, 1e9), Speeds(1e9, 1e9));
  EXPECT_EQ(table.arms().size(), 2U);
}

TEST(ArmTable, AProfileMeasuredOnOneWorkloadIsForNoOther) {
  codec::ProfileLibrary library;
  library.profiles = {MadeProfile("only", 1, 5, {MadeQuality("math", 0.99)}),
                      MadeProfile("all", 2, 4, {MadeQuality("unified", 0.99)})};
  const ArmTable table = BuildOrDie(&library, Speeds(1e9, 1e9), Speeds(1e9, 1e9));
  const int32_t only = table.Find("only").value();
  const kv::MinQuality any{true, 0};
  EXPECT_NE(table.MaskOfClass(table.ClassOf(table.Workload("math"), any)) & ArmBit(only), 0U);
  EXPECT_EQ(table.MaskOfClass(table.ClassOf(kUnified, any)) & ArmBit(only), 0U);
}

TEST(ArmTable, SpeedsThatMeanNothingAreRefusedByName) {
  const codec::ProfileLibrary library = Library();
  MachineSpeeds bad = Speeds(1e9, 1e9);
  bad.profiles[0].decode[3].raw_bytes_per_s = 0;
  const Result<ArmTable> table = ArmTable::Build(&library, bad, bad, {});
  ASSERT_FALSE(table.has_value());
  EXPECT_THAT(table.error().message, HasSubstr("profile balanced"));
}

TEST(ArmTable, MoreProfilesThanFitAreRefused) {
  Rng rng(1);
  const testing::MadeProfiles made = testing::RandomProfiles(rng, kMaxArms);
  const Result<ArmTable> table = ArmTable::Build(&made.library, made.speeds, made.speeds, {});
  ASSERT_FALSE(table.has_value());
  EXPECT_THAT(table.error().message, HasSubstr("more than 63"));
}

// For any library, workload and request, the mask of the request's class holds exactly the arms
// whose blocks the request would accept.
TEST(ArmTable, AClassHoldsExactlyWhatItsRequestsAccept) {
  const uint64_t seed = 5;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  for (int round = 0; round < 100; ++round) {
    const testing::MadeProfiles made =
        testing::RandomProfiles(rng, static_cast<int>(rng.Range(0, 20)));
    const ArmTable table = BuildOrDie(&made.library, made.speeds, made.speeds);
    for (const char* label : {"math", "qa", "other"}) {
      const WorkloadId workload = table.Workload(label);
      for (int k = 0; k < 60; ++k) {
        const kv::MinQuality quality{k % 7 != 0, static_cast<float>(0.9 + 0.002 * k)};
        const ArmMask mask = table.MaskOfClass(table.ClassOf(workload, quality));
        for (size_t arm = 0; arm < table.arms().size(); ++arm) {
          const auto i = static_cast<int32_t>(arm);
          ASSERT_EQ((mask & ArmBit(i)) != 0, quality.Accepts(table.Quality(i, workload)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvik::control
