// SPDX-License-Identifier: Apache-2.0
#include "control/predictor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "base/rng.h"
#include "control/lengths.h"

namespace kvik::control {
namespace {

TEST(Lengths, TheNearestInRatioIsUsed) {
  EXPECT_EQ(LengthBucket(1), 0U);
  EXPECT_EQ(LengthBucket(256), 0U);  // twice 128, half of 512
  EXPECT_EQ(LengthBucket(257), 1U);
  EXPECT_EQ(LengthBucket(1024), 2U);
  EXPECT_EQ(LengthBucket(2049), 3U);
  EXPECT_EQ(LengthBucket(1 << 20), 4U);
}

TEST(Predictor, SerialAddsAllStages) {
  const ArmCost cost{.wire_bytes = 0.25,
                     .encode_fixed_us = 10,
                     .decode_fixed_us = 20,
                     .encode_frame_us = 5,
                     .decode_frame_us = 7,
                     .encode_us_per_byte = 0.001,
                     .decode_us_per_byte = 0.002};
  const StageTimes t = StagesOf(cost, Form::kHandOver, 1e6, MicrosPerByte(125e6), 0, 10);
  EXPECT_NEAR(PathUs(t, Overlap::kSerial, 1), 30 + (50 + 1000) + 2000 + (70 + 2000), 1e-9);
  // Who reads from a pool does not pay for the encoding.
  const StageTimes read = StagesOf(cost, Form::kPoolRead, 1e6, MicrosPerByte(125e6), 0, 10);
  EXPECT_NEAR(PathUs(read, Overlap::kSerial, 1), 20 + 2000 + (70 + 2000), 1e-9);
}

// Frames one after the other through stages that each do one frame at a time: what the formula of
// the pipelined model stands for.
double ByFrames(const StageTimes& t, int frames) {
  const double stage_us[] = {t.produce_us, t.encode_us, t.wire_us, t.decode_us};
  double done[4] = {};
  for (int frame = 0; frame < frames; ++frame) {
    double ready = 0;
    for (int stage = 0; stage < 4; ++stage) {
      done[stage] = std::max(done[stage], ready) + stage_us[stage] / frames;
      ready = done[stage];
    }
  }
  return done[3] + t.fixed_us - t.produce_us;
}

TEST(Predictor, PipelinedIsWhatFramesTakeOneBehindTheOther) {
  Rng rng(1);
  for (int i = 0; i < 200; ++i) {
    const StageTimes t{.fixed_us = 50 * rng.Uniform(),
                       .produce_us = i % 2 == 0 ? 0 : 3000 * rng.Uniform(),
                       .encode_us = 1000 * rng.Uniform(),
                       .wire_us = 5000 * rng.Uniform(),
                       .decode_us = 1000 * rng.Uniform()};
    const int frames = static_cast<int>(rng.Range(1, 40));
    EXPECT_NEAR(PathUs(t, Overlap::kPipelined, frames), ByFrames(t, frames), 1e-6);
  }
}

// An engine computes in steps: so much of the KV is there at the end of each.
TEST(Predictor, WhatIsProducedInPartsStartsWithEachPart) {
  Rng rng(3);
  for (int i = 0; i < 200; ++i) {
    const auto parts = static_cast<int>(rng.Range(1, 5));
    const int frames = parts * static_cast<int>(rng.Range(1, 20));
    const StageTimes t{.fixed_us = 50 * rng.Uniform(),
                       .produce_us = 5000 * rng.Uniform(),
                       .produce_parts = static_cast<double>(parts),
                       .encode_us = 1000 * rng.Uniform(),
                       .wire_us = 5000 * rng.Uniform(),
                       .decode_us = 1000 * rng.Uniform()};
    const double stage_us[] = {t.encode_us, t.wire_us, t.decode_us};
    double done[3] = {};
    for (int frame = 0; frame < frames; ++frame) {
      double ready = t.produce_us * (frame / (frames / parts) + 1) / parts;
      for (int stage = 0; stage < 3; ++stage) {
        done[stage] = std::max(done[stage], ready) + stage_us[stage] / frames;
        ready = done[stage];
      }
    }
    EXPECT_NEAR(PathUs(t, Overlap::kPipelined, frames), done[2] + t.fixed_us - t.produce_us, 1e-6)
        << parts << " parts, " << frames << " frames";
  }
}

TEST(Predictor, ACurveIsThePathAtEveryBandwidth) {
  Rng rng(2);
  for (int i = 0; i < 500; ++i) {
    const ArmCost cost{.wire_bytes = 0.05 + rng.Uniform(),
                       .encode_fixed_us = 100 * rng.Uniform(),
                       .decode_fixed_us = 100 * rng.Uniform(),
                       .encode_frame_us = 50 * rng.Uniform(),
                       .decode_frame_us = 50 * rng.Uniform(),
                       .encode_us_per_byte = 0.01 * rng.Uniform(),
                       .decode_us_per_byte = 0.01 * rng.Uniform()};
    const Form form = i % 2 == 0 ? Form::kHandOver : Form::kPoolRead;
    const Overlap overlap = i % 3 == 0 ? Overlap::kSerial : Overlap::kPipelined;
    const double frames = static_cast<double>(rng.Range(1, 60));
    const double raw_bytes = 1e5 + 1e7 * rng.Uniform();
    const double produce_us = i % 5 == 0 ? 1e5 * rng.Uniform() : 0;
    const PathCurve curve = CurveOf(cost, form, overlap, frames, raw_bytes, produce_us);
    for (int k = 0; k < 20; ++k) {
      const double x = 0.1 * rng.Uniform() * rng.Uniform();
      const double path =
          PathUs(StagesOf(cost, form, raw_bytes, x, produce_us, frames), overlap, frames);
      EXPECT_NEAR(curve.At(x), path, 1e-9 * (1 + std::abs(path))) << "case " << i;
    }
  }
}

TEST(Predictor, CompressionBreaksEvenAtItsThreshold) {
  const ArmCost cost{.wire_bytes = 0.2, .encode_us_per_byte = 0.0004, .decode_us_per_byte = 0.0006};
  // Combined speed 1 GB/s: half the harmonic mean of 2.5 and 1.67.
  EXPECT_NEAR(BreakEvenBytesPerS(cost, Form::kHandOver), 1e9 * 0.8, 1);
  EXPECT_NEAR(BreakEvenBytesPerS(cost, Form::kPoolRead), 1e6 / 0.0006 * 0.8, 1);
  const ArmCost raw;
  for (const Form form : {Form::kHandOver, Form::kPoolRead}) {
    const double x = MicrosPerByte(BreakEvenBytesPerS(cost, form));
    EXPECT_NEAR(PathUs(StagesOf(cost, form, 1e6, x, 0, 1), Overlap::kSerial, 1),
                PathUs(StagesOf(raw, form, 1e6, x, 0, 1), Overlap::kSerial, 1), 1e-6);
  }
  EXPECT_EQ(BreakEvenBytesPerS({.wire_bytes = 1.01}, Form::kHandOver), 0);
  EXPECT_EQ(BreakEvenBytesPerS({.wire_bytes = 0.5}, Form::kHandOver),
            std::numeric_limits<double>::infinity());
}

// The more frames, the more often their cost is paid, whatever they hold: a short prompt that has a
// frame a layer like a longer one pays as much.
TEST(Predictor, CostsOfFramesMakeShortPromptsGoRaw) {
  const ArmCost cost{.wire_bytes = 0.25, .encode_frame_us = 6, .decode_frame_us = 4};
  const ArmCost raw{.encode_frame_us = 1, .decode_frame_us = 1};
  const double x = MicrosPerByte(1.25e9);
  const auto us = [&](const ArmCost& c, double bytes) {
    return PathUs(StagesOf(c, Form::kHandOver, bytes, x, 0, 30), Overlap::kPipelined, 30);
  };
  EXPECT_LT(us(raw, 1e5), us(cost, 1e5));
  EXPECT_LT(us(cost, 1e6), us(raw, 1e6));
}

TEST(Predictor, AFixedCostMakesShortPromptsGoRaw) {
  const ArmCost cost{.wire_bytes = 0.1, .encode_fixed_us = 400, .decode_fixed_us = 400};
  const ArmCost raw;
  const double x = MicrosPerByte(1e9);
  const auto us = [&](const ArmCost& c, double bytes) {
    return PathUs(StagesOf(c, Form::kHandOver, bytes, x, 0, 30), Overlap::kPipelined, 30);
  };
  EXPECT_GT(us(cost, 5e5), us(raw, 5e5));
  EXPECT_LT(us(cost, 5e6), us(raw, 5e6));
}

double LogNormalOf(Rng& rng, double sigma) {
  const double radius = std::sqrt(-2 * std::log(1 - rng.Uniform()));
  const double normal = radius * std::cos(2 * std::numbers::pi * rng.Uniform());
  return std::exp(sigma * normal - sigma * sigma / 2);
}

TEST(Predictor, TheMeanPathIsTheMeanOfNoisyPaths) {
  constexpr uint64_t kSeed = 7;
  SCOPED_TRACE(kSeed);
  Rng rng(kSeed);
  for (int round = 0; round < 60; ++round) {
    StageTimes t;
    t.fixed_us = 100 * rng.Uniform();
    t.produce_us = rng.Below(2) == 0 ? 0 : 1000 * rng.Uniform();
    t.encode_us = 1000 * rng.Uniform();
    t.wire_us = 200 + 1000 * rng.Uniform();
    t.decode_us = 1000 * rng.Uniform();
    const double frames = static_cast<double>(rng.Range(1, 100));
    const double noise = 0.3 * rng.Uniform();
    double sum = 0;
    constexpr int kDraws = 20'000;
    for (int i = 0; i < kDraws; ++i) {
      StageTimes noisy = t;
      noisy.encode_us *= LogNormalOf(rng, noise);
      noisy.wire_us *= LogNormalOf(rng, noise);
      noisy.decode_us *= LogNormalOf(rng, noise);
      sum += PathUs(noisy, Overlap::kPipelined, frames);
    }
    const double whole = sum / kDraws + t.produce_us;
    EXPECT_NEAR(MeanPathUs(t, Overlap::kPipelined, frames, noise) + t.produce_us, whole,
                0.015 * whole)
        << round;
  }
}

TEST(Predictor, TheMeanPathIsThePathWithoutNoiseOrOverlap) {
  const StageTimes t{.fixed_us = 10, .encode_us = 500, .wire_us = 510, .decode_us = 490};
  EXPECT_DOUBLE_EQ(MeanPathUs(t, Overlap::kPipelined, 10, 0), PathUs(t, Overlap::kPipelined, 10));
  EXPECT_DOUBLE_EQ(MeanPathUs(t, Overlap::kSerial, 10, 0.2), PathUs(t, Overlap::kSerial, 10));
  const StageTimes in_parts{
      .produce_us = 300, .produce_parts = 3, .encode_us = 10, .wire_us = 900, .decode_us = 20};
  EXPECT_NEAR(MeanPathUs(in_parts, Overlap::kPipelined, 10, 0.2),
              PathUs(in_parts, Overlap::kPipelined, 10), 1e-3);
  // Three equal stages: one of them is always late.
  EXPECT_GT(MeanPathUs(t, Overlap::kPipelined, 10, 0.2), 1.1 * PathUs(t, Overlap::kPipelined, 10));
}

}  // namespace
}  // namespace kvik::control
