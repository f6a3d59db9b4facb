// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "codec/ecsq_classes.h"
#include "codec/testing/quantizer_runs.h"

namespace kvik::codec {
namespace {

using testing::DecodeRun;
using testing::Normal;
using testing::QuantizerCase;
using testing::QuantizerRun;
using testing::RunQuantizer;

constexpr uint64_t kSeed = 20240903;
constexpr const char* kSigma = "ecsq/k//sigma";
constexpr const char* kWeights = "ecsq/k//weights";

// --- the table of classes ------------------------------------------------------------------------

// A normal distribution of a spread in steps, coded with boundaries moved by theta and the best
// reconstruction: squared error in squared steps, and bits.
struct Cost {
  double error = 0;
  double bits = 0;
  std::vector<double> probability;  // of magnitudes, both signs together
  std::vector<double> centroid;     // of magnitudes
  [[nodiscard]] double Total() const { return error + std::log(2.0) / 6 * bits; }
};

double Above(double x) { return 0.5 * std::erfc(x / std::sqrt(2.0)); }
double Density(double x) { return std::exp(-0.5 * x * x) / std::sqrt(2 * std::acos(-1.0)); }

Cost CostOf(double spread, double theta) {
  Cost cost;
  const double zero = 1 - 2 * Above((0.5 + theta) / spread);
  cost.probability.push_back(zero);
  cost.centroid.push_back(0);
  cost.error = spread * spread;
  cost.bits = -zero * std::log2(zero);
  for (int m = 1; m < 400; ++m) {
    const double from = (m - 0.5 + theta) / spread;
    const double to = (m + 0.5 + theta) / spread;
    const double one_sign = Above(from) - Above(to);
    if (one_sign < 1e-30) {
      break;
    }
    const double mean = spread * (Density(from) - Density(to)) / one_sign;
    cost.error -= 2 * one_sign * mean * mean;
    cost.bits -= 2 * one_sign * std::log2(one_sign);
    cost.probability.push_back(2 * one_sign);
    cost.centroid.push_back(mean);
  }
  return cost;
}

TEST(EcsqClasses, BoundariesAndReconstructionAreBestForNormalValues) {
  for (size_t k = 1; k < kNumEcsqClasses; ++k) {
    const EcsqClass& c = kEcsqClasses[k];
    const Cost cost = CostOf(c.spread, c.theta);
    for (int other = 0; other < 30; ++other) {
      EXPECT_LE(cost.Total(), CostOf(c.spread, other / 64.0).Total() + 1e-12) << "class " << k;
    }
    // The line through centroids loses next to nothing against the centroids themselves.
    double loss = 0;
    for (size_t m = 1; m < cost.centroid.size(); ++m) {
      const double value = static_cast<double>(m) * c.slope + c.offset;
      loss += cost.probability[m] * (value - cost.centroid[m]) * (value - cost.centroid[m]);
    }
    EXPECT_LT(loss, 2e-3 * cost.error) << "class " << k;
  }
}

TEST(EcsqClasses, AlphabetsReachFourAndAHalfSpreads) {
  for (size_t k = 1; k < kNumEcsqClasses; ++k) {
    const EcsqClass& c = kEcsqClasses[k];
    EXPECT_LT(kEcsqClasses[k - 1].spread, c.spread);
    EXPECT_GE((0.5F * static_cast<float>(c.alphabet) - 0.5F) / c.spread, 3.9F) << "class " << k;
    EXPECT_TRUE(c.alphabet == 16 ||
                (0.25F * static_cast<float>(c.alphabet) - 0.5F) / c.spread < 4.65F)
        << "class " << k;
    EXPECT_EQ(EcsqClassOf(c.spread), k);
  }
  EXPECT_EQ(EcsqClassOf(0.0F), 0);
  EXPECT_EQ(EcsqClassOf(1e30F), kNumEcsqClasses - 1);
}

// --- the quantizer -------------------------------------------------------------------------------

// Adds calibrated spreads: those that the case's values were made with, or any.
void Calibrate(QuantizerCase& c, const std::vector<float>& spreads) {
  const auto layers = static_cast<size_t>(c.model.num_layers);
  std::vector<float> sigma;
  for (size_t layer = 0; layer < layers; ++layer) {
    sigma.insert(sigma.end(), spreads.begin(), spreads.end());
  }
  ASSERT_TRUE(
      c.side_info->Add(kSigma, {c.model.num_layers, c.model.num_kv_heads, c.tile.channels}, sigma));
}

// Normal values of the given spreads [heads, channels], as bf16.
void FillNormal(QuantizerCase& c, const std::vector<float>& spreads, uint64_t seed) {
  Rng rng(seed);
  c.Fill([&](int32_t h, int32_t, int32_t ch) {
    const auto i = static_cast<size_t>(h * c.tile.channels + ch);
    return ToFloat(ToBf16(spreads[i] * Normal(rng)));
  });
}

std::vector<float> SomeSpreads(const QuantizerCase& c, uint64_t seed) {
  Rng rng(seed, 3);
  std::vector<float> spreads;
  for (int32_t i = 0; i < c.tile.heads * c.tile.channels; ++i) {
    spreads.push_back(ToFloat(ToF16(std::exp(1.5F * Normal(rng)))));
  }
  return spreads;
}

// A value of a class, the slow way.
float Expected(float x, float step, uint8_t k) {
  const EcsqClass& c = kEcsqClasses[k];
  const float y = x * (1.0F / step);
  const float q = std::nearbyint(y - std::copysign(c.theta, y));
  const float magnitude = std::abs(q);
  if (magnitude == 0) {
    return std::copysign(0.0F, q);
  }
  if (magnitude > static_cast<float>((c.alphabet >> 1) - 1)) {
    return q * step;
  }
  return std::copysign(std::fma(magnitude, c.slope * step, c.offset * step), q);
}

// All of the case by calibrated spreads; rows outside [body_begin, body_end) are protected.
void ExpectCalibrated(const QuantizerCase& c, const std::vector<float>& spreads, double d,
                      int32_t body_begin, int32_t body_end, float protect, const Tile& decoded) {
  for (int32_t h = 0; h < c.tile.heads; ++h) {
    const auto of_head = std::span(spreads).subspan(static_cast<size_t>(h * c.tile.channels),
                                                    static_cast<size_t>(c.tile.channels));
    double mean = 0;
    for (const float s : of_head) {
      mean += static_cast<double>(s) * static_cast<double>(s);
    }
    const auto step = static_cast<float>(d * std::sqrt(mean / static_cast<double>(of_head.size())));
    for (int32_t ch = 0; ch < c.tile.channels; ++ch) {
      const uint8_t k = EcsqClassOf(of_head[static_cast<size_t>(ch)] / step);
      const uint8_t finer = EcsqClassOf(kEcsqClasses[k].spread * protect);
      for (int32_t r = 0; r < c.tile.rows; ++r) {
        const bool guarded = r < body_begin || r >= body_end;
        const float its_step = guarded ? step / protect : step;
        const float x = QuantizerCase::At(c.tile, h, r, ch);
        const float actual = QuantizerCase::At(decoded, h, r, ch);
        ASSERT_EQ(actual, Expected(x, its_step, guarded ? finer : k))
            << "head " << h << " row " << r << " channel " << ch << " class " << int{k};
        ASSERT_LE(std::abs(actual - x), its_step * 1.0001F);
      }
    }
  }
}

TEST(Ecsq, EqualsTheReferenceOverOddShapes) {
  Rng rng(kSeed);
  for (const int32_t head_dim : {64, 80, 96, 100, 112, 128, 192, 256}) {
    for (const int32_t heads : {1, 2, 5}) {
      for (const int32_t rows : {1, 2, 3, 16, 37}) {
        QuantizerCase c(heads, rows, head_dim);
        const auto spreads = SomeSpreads(c, rng.Next());
        FillNormal(c, spreads, rng.Next());
        Calibrate(c, spreads);
        SCOPED_TRACE(std::to_string(heads) + " heads, " + std::to_string(rows) + " rows, " +
                     std::to_string(head_dim) + " channels");
        const double d = std::exp2(static_cast<double>(rng.Range(-3, 2)));
        const std::string text = "ecsq(d=" + std::to_string(d) + ",sinks=0)";
        ExpectCalibrated(c, spreads, d, 0, rows, 1, RunQuantizer(text, c).decoded);
        RunQuantizer("ecsq(d=0.5,mode=self)", c);
      }
    }
  }
}

TEST(Ecsq, ProtectedRowsHaveFinerSteps) {
  QuantizerCase c(3, 60, 64);
  const auto spreads = SomeSpreads(c, kSeed);
  FillNormal(c, spreads, kSeed);
  Calibrate(c, spreads);
  c.prompt_tokens = 62;
  ExpectCalibrated(c, spreads, 1, 4, 52, 4, RunQuantizer("ecsq(d=1,sinks=4,recent=10)", c).decoded);
  ExpectCalibrated(c, spreads, 1, 4, 60, 8, RunQuantizer("ecsq(protect=8)", c).decoded);
  ExpectCalibrated(c, spreads, 1, 60, 60, 4, RunQuantizer("ecsq(recent=99)", c).decoded);
}

TEST(Ecsq, NoRowsMakeNoPlanes) {
  QuantizerCase c(2, 0, 64);
  Calibrate(c, SomeSpreads(c, kSeed));
  for (const char* text : {"ecsq", "ecsq(mode=self)"}) {
    const QuantizerRun run = RunQuantizer(text, c);
    EXPECT_EQ(run.planes.count, 0U);
    EXPECT_TRUE(run.side.empty());
  }
}

// Entropy of the symbols, in bits a value, and of everything in `side`.
double Bits(const QuantizerRun& run) {
  double bits = 8.0 * static_cast<double>(run.side.size());
  for (const SymbolPlane& plane : run.planes.used()) {
    std::vector<double> counts(static_cast<size_t>(plane.alphabet));
    for (const uint8_t symbol : plane.symbols) {
      ++counts[symbol];
    }
    for (const double n : counts) {
      bits -= n == 0 ? 0 : n * std::log2(n / static_cast<double>(plane.symbols.size()));
    }
  }
  return bits / static_cast<double>(run.decoded.size());
}

double MeanSquare(const Tile& a, const Tile& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double error = static_cast<double>(a.values[i]) - static_cast<double>(b.values[i]);
    sum += error * error;
  }
  return sum / static_cast<double>(a.size());
}

TEST(Ecsq, IsWithinAQuarterBitOfShannonOnNormalValues) {
  QuantizerCase c(1, 4096, 64);
  const std::vector<float> spreads(64, 1.0F);
  FillNormal(c, spreads, kSeed);
  Calibrate(c, spreads);
  for (const char* d : {"0.5", "0.7", "1", "1.4", "2"}) {
    const QuantizerRun run = RunQuantizer(std::string("ecsq(d=") + d + ",sinks=0)", c);
    const double shannon = -0.5 * std::log2(MeanSquare(c.tile, run.decoded));
    EXPECT_LT(Bits(run) - shannon, 0.27) << "d " << d << ": " << Bits(run) << " bits";
  }
}

TEST(Ecsq, OneStepForUnequalChannelsBeatsEqualLevels) {
  // Log-normal spreads with a deviation of 0.6: one step saves about 1.46x at equal error.
  QuantizerCase c(1, 2048, 128);
  std::vector<float> spreads;
  Rng rng(kSeed);
  for (int i = 0; i < 128; ++i) {
    spreads.push_back(std::exp(0.6F * Normal(rng)));
  }
  FillNormal(c, spreads, kSeed);
  for (float& s : spreads) {
    s = ToFloat(ToF16(s));
  }
  Calibrate(c, spreads);
  const QuantizerRun uniform = RunQuantizer("uniform(levels=8,per=channel)", c);
  const double error = MeanSquare(c.tile, uniform.decoded);
  const QuantizerRun ours = RunQuantizer("ecsq(d=0.96,sinks=0)", c);
  EXPECT_LT(MeanSquare(c.tile, ours.decoded), error);
  EXPECT_LT(Bits(ours) * 1.3, Bits(uniform)) << MeanSquare(c.tile, ours.decoded) / error;
}

TEST(Ecsq, OutliersEscapeAndSpoilNothing) {
  for (const char* text : {"ecsq(d=1,sinks=0)", "ecsq(d=1,sinks=0,recent=5)"}) {
    QuantizerCase c(2, 40, 64);
    const auto spreads = SomeSpreads(c, kSeed);
    FillNormal(c, spreads, kSeed);
    Calibrate(c, spreads);
    c.prompt_tokens = 40;
    QuantizerCase::At(c.tile, 0, 3, 7) = 12345.0F;
    QuantizerCase::At(c.tile, 1, 39, 63) = -16384.0F;
    QuantizerCase::At(c.tile, 1, 39, 62) = 1e6F;
    for (int32_t ch = 0; ch < 64; ++ch) {  // channels of every class, the dropped one as well
      QuantizerCase::At(c.tile, 1, 20, ch) = ch % 2 == 0 ? 900.0F : -900.0F;
    }
    const QuantizerRun run = RunQuantizer(text, c);
    const int32_t end = std::string(text).find("recent") == std::string::npos ? 40 : 35;
    ExpectCalibrated(c, spreads, 1, 0, end, 4, run.decoded);
  }
}

TEST(Ecsq, ChannelsFarBelowTheStepCostNothing) {
  QuantizerCase c(1, 64, 64);
  std::vector<float> spreads(64, 0.001F);
  spreads[5] = 8.0F;  // the head's step is about 1
  FillNormal(c, spreads, kSeed);
  for (float& s : spreads) {
    s = ToFloat(ToF16(s));
  }
  Calibrate(c, spreads);
  QuantizerRun run = RunQuantizer("ecsq(d=1,sinks=0)", c);
  ASSERT_EQ(run.planes.count, 1U);
  EXPECT_EQ(run.planes.planes[0].symbols.size(), 64U);
  EXPECT_EQ(run.side.size(), 1U);
  // What calibration did not expect is not lost: as exact as in any other channel.
  QuantizerCase::At(c.tile, 0, 11, 40) = 3.0F;
  QuantizerCase::At(c.tile, 0, 63, 63) = -700.0F;
  run = RunQuantizer("ecsq(d=1,sinks=0)", c);
  ExpectCalibrated(c, spreads, 1, 0, 64, 1, run.decoded);
  EXPECT_NEAR(QuantizerCase::At(run.decoded, 0, 11, 40), 3.0F, 1.0F);
  EXPECT_NEAR(QuantizerCase::At(run.decoded, 0, 63, 63), -700.0F, 1.0F);
}

TEST(Ecsq, ConstantZeroNegativeZeroAndSubnormalChannels) {
  QuantizerCase c(1, 9, 64);
  c.Fill([](int32_t, int32_t r, int32_t ch) {
    switch (ch % 4) {
      case 0:
        return 3.140625F;
      case 1:
        return 0.0F;
      case 2:
        return -0.0F;
      default:
        return 0x1.0p-130F * static_cast<float>(r);
    }
  });
  Calibrate(c, std::vector<float>(64, 1.0F));
  for (const char* text : {"ecsq(sinks=0)", "ecsq(mode=self,sinks=0)"}) {
    const QuantizerRun run = RunQuantizer(text, c);
    for (size_t i = 0; i < c.tile.size(); ++i) {
      EXPECT_NEAR(run.decoded.values[i], c.tile.values[i], 2.0F);
    }
  }
  c.Fill([](int32_t, int32_t, int32_t) { return 0.0F; });
  Calibrate(c, std::vector<float>(64, 0.0F));
  for (const char* text : {"ecsq(sinks=0)", "ecsq(sinks=0,mode=self)"}) {
    const QuantizerRun run = RunQuantizer(text, c);
    EXPECT_EQ(run.planes.count, 0U);
    EXPECT_TRUE(std::all_of(run.decoded.values.begin(), run.decoded.values.end(),
                            [](float v) { return v == 0; }));
  }
}

TEST(Ecsq, SelfCalibratedFramesFollowTheirOwnSpread) {
  QuantizerCase c(2, 256, 96);
  const auto spreads = SomeSpreads(c, kSeed);
  FillNormal(c, spreads, kSeed);
  Calibrate(c, spreads);
  const QuantizerRun own = RunQuantizer("ecsq(mode=self,sinks=0)", c);
  const QuantizerRun calibrated = RunQuantizer("ecsq(sinks=0)", c);
  // A step and 5 bits a channel for every head, and what is left of dropped channels and escapes.
  EXPECT_GE(own.side.size(), 2U * (2 + 60));
  EXPECT_NEAR(Bits(own) - 8.0 * 2 * (2 + 60) / static_cast<double>(c.tile.size()), Bits(calibrated),
              0.1);
  EXPECT_NEAR(MeanSquare(c.tile, own.decoded) / MeanSquare(c.tile, calibrated.decoded), 1, 0.1);
}

TEST(Ecsq, WeightsSetTheSteps) {
  QuantizerCase c(2, 20, 64);
  const std::vector<float> spreads(128, 1.0F);
  FillNormal(c, spreads, kSeed);
  Calibrate(c, spreads);
  std::vector<float> weights(24, 0.125F);
  c.layer = 11;
  weights[23] = 0.5F;  // layer 11, head 1
  ASSERT_TRUE(c.side_info->Add(kWeights, {12, 2}, weights));
  const QuantizerRun run = RunQuantizer("ecsq(d=2,sinks=0)", c);
  for (int32_t h = 0; h < 2; ++h) {
    const float step = h == 0 ? 0.25F : 1.0F;
    for (int32_t r = 0; r < 20; ++r) {
      const float x = QuantizerCase::At(c.tile, h, r, 9);
      EXPECT_EQ(QuantizerCase::At(run.decoded, h, r, 9), Expected(x, step, EcsqClassOf(1 / step)));
    }
  }
}

TEST(Ecsq, StepsByLayersAboveNineAndByHeads) {
  QuantizerCase c(2, 20, 64);
  const std::vector<float> spreads(128, 1.0F);
  FillNormal(c, spreads, kSeed);
  Calibrate(c, spreads);
  std::vector<float> scores(24);
  for (size_t i = 0; i < 24; ++i) {
    scores[i] = static_cast<float>(i % 2);
  }
  ASSERT_TRUE(c.side_info->Add("scores/attention", {12, 2}, scores));
  const auto classes = [&](const std::string& text, int32_t layer) {
    c.layer = layer;
    std::vector<int32_t> contexts;
    const QuantizerRun run = RunQuantizer(text, c);
    for (const SymbolPlane& plane : run.planes.used()) {
      contexts.push_back(plane.context);
    }
    return contexts;
  };
  const int32_t coarse = EcsqClassOf(1.0F);
  const int32_t fine = EcsqClassOf(2.0F);
  EXPECT_EQ(classes("ecsq(d=thirds(1,1,0.5),sinks=0)", 11), std::vector<int32_t>{fine});
  EXPECT_EQ(classes("ecsq(d=thirds(1,1,0.5),sinks=0)", 7), std::vector<int32_t>{coarse});
  EXPECT_EQ(classes("ecsq(d=mix(0.5,0.5,1),sinks=0)", 10), (std::vector<int32_t>{coarse, fine}));
}

TEST(Ecsq, MissingTensorsAreNamed) {
  QuantizerCase c(2, 20, 64);
  auto made = c.Make("ecsq");
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(made.error().message.find(kSigma), std::string::npos) << made.error().message;
  ASSERT_TRUE(c.side_info->Add(kSigma, {12, 2, 63}, std::vector<float>(size_t{12} * 2 * 63, 1)));
  EXPECT_EQ(c.Make("ecsq").error().code, ErrorCode::kUnsupported);
  EXPECT_TRUE(c.Make("ecsq(mode=self)"));
}

TEST(Ecsq, ValuesTooLargeForTheirStepAreRefused) {
  QuantizerCase c(1, 20, 64);
  Calibrate(c, std::vector<float>(64, 0.001F));
  QuantizerCase::At(c.tile, 0, 7, 7) = 1e38F;
  const auto quantizer = c.Make("ecsq(d=0.01)");
  ASSERT_TRUE(quantizer);
  for (const Isa isa : SupportedIsas()) {
    SymbolPlanes planes;
    std::vector<std::byte> side;
    ByteWriter writer(side);
    const auto done = (*quantizer)->Quantize(c.Context(isa), c.tile, planes, writer);
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, ErrorCode::kUnsupported);
  }
}

TEST(Ecsq, SideBytesTruncatedOrLying) {
  QuantizerCase c(2, 40, 64);
  auto spreads = SomeSpreads(c, kSeed);
  spreads[3] = spreads[70] = 0.0001F;
  FillNormal(c, spreads, kSeed);
  for (float& s : spreads) {
    s = ToFloat(ToF16(s));
  }
  Calibrate(c, spreads);
  QuantizerCase::At(c.tile, 0, 39, 3) = 77.0F;
  QuantizerCase::At(c.tile, 1, 30, 9) = -7777.0F;
  for (const char* text : {"ecsq", "ecsq(mode=self)"}) {
    const auto quantizer = c.Make(text);
    const QuantizerRun run = RunQuantizer(text, c);
    for (size_t size = 0; size < run.side.size(); ++size) {
      const auto decoded =
          DecodeRun(**quantizer, c, Isa::kScalar, run.planes, std::span(run.side).first(size));
      ASSERT_FALSE(decoded) << text << " with " << size << " bytes";
      EXPECT_EQ(decoded.error().code, ErrorCode::kCorrupt);
    }
    // Any damage decodes to something finite or is refused.
    Rng rng(kSeed);
    for (int round = 0; round < 2000; ++round) {
      std::vector<std::byte> lying = run.side;
      for (int i = 0; i < 3; ++i) {
        lying[rng.Below(lying.size())] = static_cast<std::byte>(rng.Next());
      }
      const auto decoded = DecodeRun(**quantizer, c, Isa::kScalar, run.planes, lying);
      if (!decoded) {
        EXPECT_EQ(decoded.error().code, ErrorCode::kCorrupt);
        continue;
      }
      EXPECT_TRUE(std::all_of(decoded->values.begin(), decoded->values.end(),
                              [](float v) { return std::isfinite(v); }))
          << "seed " << kSeed << " round " << round;
    }
  }
}

}  // namespace
}  // namespace kvik::codec
