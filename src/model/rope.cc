// SPDX-License-Identifier: Apache-2.0
#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace kvik::model {
namespace {

constexpr double kTwoPi = 2.0 * std::numbers::pi;

// Llama 3: wavelengths longer than the trained context (over low_freq_factor) are divided by
// `factor`, those shorter than it over high_freq_factor are kept, between them a linear blend.
void ScaleLlama3(const RopeConfig& rope, std::vector<double>& frequencies) {
  for (double& frequency : frequencies) {
    const double turns = rope.original_context_tokens * frequency / kTwoPi;
    if (turns < rope.low_freq_factor) {
      frequency /= rope.factor;
    } else if (turns <= rope.high_freq_factor) {
      const double keep =
          (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
      frequency = (1 - keep) * frequency / rope.factor + keep * frequency;
    }
  }
}

// YaRN: the ramp runs over dimensions, between those that turn beta_fast and beta_slow times in
// the trained context. Below it frequencies are kept, above it divided by `factor`.
void ScaleYarn(const RopeConfig& rope, int32_t head_dim, std::vector<double>& frequencies) {
  const auto dimension_turning = [&](double turns) {
    return head_dim * std::log(rope.original_context_tokens / (turns * kTwoPi)) /
           (2 * std::log(rope.theta));
  };
  double low = dimension_turning(rope.beta_fast);
  double high = dimension_turning(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1.0);
  if (low == high) {
    high += 0.001;
  }
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / rope.factor * ramp + frequencies[i] * (1 - ramp);
  }
}

struct SinCos {
  double sin;
  double cos;
};

// For |angle| up to about 1e8 with an error near 1e-15 plus 1e-16 of the angle: reduction to
// [-pi/4, pi/4] by a pi/2 in three parts, then the Taylor series, whose next term is below 1e-16.
SinCos ComputeSinCos(double angle) {
  constexpr double kHalfPiHigh = 0x1.921fb544p+0;  // 33 bits: products with 20-bit counts are exact
  constexpr double kHalfPiMid = 0x1.0b4611a6p-34;
  constexpr double kHalfPiLow = 0x1.3198a2e037073p-69;
  constexpr double kRound = 0x1.8p+52;  // adding it rounds to an integer
  const double quarter = (angle * (2.0 / std::numbers::pi) + kRound) - kRound;
  const double r = ((angle - quarter * kHalfPiHigh) - quarter * kHalfPiMid) - quarter * kHalfPiLow;
  const double x = r * r;
  double s = -1.0 / 1307674368000.0;
  s = s * x + 1.0 / 6227020800.0;
  s = s * x - 1.0 / 39916800.0;
  s = s * x + 1.0 / 362880.0;
  s = s * x - 1.0 / 5040.0;
  s = s * x + 1.0 / 120.0;
  s = s * x - 1.0 / 6.0;
  const double sin = s * x * r + r;
  double c = 1.0 / 20922789888000.0;
  c = c * x - 1.0 / 87178291200.0;
  c = c * x + 1.0 / 479001600.0;
  c = c * x - 1.0 / 3628800.0;
  c = c * x + 1.0 / 40320.0;
  c = c * x - 1.0 / 720.0;
  c = c * x + 1.0 / 24.0;
  c = c * x - 0.5;
  const double cos = c * x + 1.0;
  const auto quadrant = static_cast<int64_t>(quarter) & 3;
  const double swapped_sin = (quadrant & 1) != 0 ? cos : sin;
  const double swapped_cos = (quadrant & 1) != 0 ? sin : cos;
  return {(quadrant & 2) != 0 ? -swapped_sin : swapped_sin,
          ((quadrant + 1) & 2) != 0 ? -swapped_cos : swapped_cos};
}

}  // namespace

RopeTable::RopeTable(const RopeConfig& rope, int32_t head_dim) {
  for (int32_t i = 0; i < head_dim / 2; ++i) {
    frequencies_.push_back(std::pow(rope.theta, -2.0 * i / head_dim));
  }
  switch (rope.scaling) {
    case RopeScaling::kNone:
      break;
    case RopeScaling::kLinear:
      for (double& frequency : frequencies_) {
        frequency /= rope.factor;
      }
      break;
    case RopeScaling::kLlama3:
      ScaleLlama3(rope, frequencies_);
      break;
    case RopeScaling::kYarn:
      ScaleYarn(rope, head_dim, frequencies_);
      scale_ = rope.attention_factor != 0 ? rope.attention_factor
               : rope.factor > 1          ? 0.1 * std::log(rope.factor) + 1
                                          : 1.0;
      break;
  }
  for (size_t i = 0; i < rope.frequency_divisors.size(); ++i) {
    frequencies_[i] /= static_cast<double>(rope.frequency_divisors[i]);
  }
}

void RopeTable::Angles(int32_t position, std::span<float> cosines, std::span<float> sines) const {
  KVIK_DCHECK(cosines.size() == frequencies_.size() && sines.size() == frequencies_.size());
  for (size_t i = 0; i < frequencies_.size(); ++i) {
    const SinCos angle = ComputeSinCos(position * frequencies_[i]);
    cosines[i] = static_cast<float>(angle.cos * scale_);
    sines[i] = static_cast<float>(angle.sin * scale_);
  }
}

}  // namespace kvik::model
