// SPDX-License-Identifier: Apache-2.0
#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/rotary_angles.h"

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
  RotaryAngles(Isa::kScalar, {&position, 1}, frequencies_, scale_, cosines.data(), sines.data());
}

}  // namespace kvik::model
