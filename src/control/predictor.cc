// SPDX-License-Identifier: Apache-2.0
#include "control/predictor.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <utility>

namespace kvik::control {
namespace {

// Single precision: a decision computes some dozen of these, and times are not that well known.
struct Normal {
  float mean = 0;
  float variance = 0;
};

// So many deviations apart, the lesser of two normals does not matter.
constexpr float kClear = 2;

// Density and distribution of the standard normal, from 0 on.
struct Gauss {
  static constexpr int kSteps = 32;  // for one deviation
  std::array<float, static_cast<size_t>(kClear) * kSteps + 2> density{};
  std::array<float, static_cast<size_t>(kClear) * kSteps + 2> below{};
  Gauss() {
    for (size_t i = 0; i < density.size(); ++i) {
      const double z = static_cast<double>(i) / kSteps;
      density[i] = static_cast<float>(std::exp(-z * z / 2) *
                                      (std::numbers::inv_sqrtpi / std::numbers::sqrt2));
      below[i] = static_cast<float>(1 - std::erfc(z / std::numbers::sqrt2) / 2);
    }
  }
};
const Gauss kGauss;

// The greater of two independent ones, as a normal with its mean and variance (Clark 1961).
Normal Greater(Normal a, Normal b) {
  if (a.mean < b.mean) {
    std::swap(a, b);
  }
  const float variance = a.variance + b.variance;
  const float difference = a.mean - b.mean;
  if (difference * difference >= kClear * kClear * variance) {
    return a;
  }
  const float deviation = std::sqrt(variance);
  const float at = difference / deviation * Gauss::kSteps;
  const auto i = std::min(static_cast<size_t>(at), kGauss.density.size() - 2);
  const float part = at - static_cast<float>(i);
  const auto between = [&](const auto& table) {
    return table[i] + part * (table[i + 1] - table[i]);
  };
  const float spread = deviation * between(kGauss.density);
  const float a_wins = between(kGauss.below);
  // Relative to b: no large squares are subtracted from each other.
  const float over = difference * a_wins + spread;
  const float square = (difference * difference + a.variance) * a_wins + b.variance * (1 - a_wins) +
                       difference * spread;
  return {b.mean + over, std::max(0.0F, square - over * over)};
}

}  // namespace

double MeanPathUs(const StageTimes& t, Overlap overlap, double frames, double noise) {
  if (overlap == Overlap::kSerial || noise == 0) {
    return PathUs(t, overlap, frames);
  }
  const auto normal = [&](double us) {
    const auto mean = static_cast<float>(us);
    const auto deviation = static_cast<float>(us * noise);
    return Normal{mean, deviation * deviation};
  };
  Normal slowest = Greater(normal(t.wire_us), normal(t.decode_us));
  slowest = Greater(slowest, normal(t.encode_us));
  if (!(t.produce_parts > 0)) {
    slowest = Greater(slowest, {static_cast<float>(t.produce_us), 0});
  }
  return OverlappedUs(t, slowest.mean, frames);
}

PathCurve CurveOf(const ArmCost& cost, Form form, Overlap overlap, double frames, double raw_bytes,
                  double produce_us) {
  const StageTimes t = StagesOf(cost, form, raw_bytes, 0, produce_us, frames);
  const double wire_slope = cost.wire_bytes * raw_bytes;
  if (overlap == Overlap::kSerial) {
    const Line line{t.fixed_us + t.encode_us + t.decode_us, wire_slope};
    return {line, line};
  }
  // PathUs with the slowest of the others, then with the wire, taken for the slowest stage. The
  // wrong one of the two is never the greater: a stage counts more whole than in part.
  const double slowest = std::max({t.encode_us, t.decode_us, t.produce_us});
  const double others = t.encode_us + t.decode_us + t.produce_us;
  const double rest = t.fixed_us - t.produce_us;
  return {{rest + slowest + (others - slowest) / frames, wire_slope / frames},
          {rest + others / frames, wire_slope}};
}

double BreakEvenBytesPerS(const ArmCost& cost, Form form) {
  const double us_per_byte =
      cost.decode_us_per_byte + (form == Form::kHandOver ? cost.encode_us_per_byte : 0);
  const double saved = 1 - cost.wire_bytes;
  if (saved <= 0) {
    return 0;
  }
  return us_per_byte == 0 ? std::numeric_limits<double>::infinity() : 1e6 * saved / us_per_byte;
}

}  // namespace kvik::control
