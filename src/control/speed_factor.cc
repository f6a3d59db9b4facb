// SPDX-License-Identifier: Apache-2.0
#include "control/speed_factor.h"

#include <algorithm>
#include <cmath>

namespace kvik::control {
namespace {

// One observation cannot say more than this: a transfer that stalled is no measure of speed.
constexpr double kMost = 8;
// Of the time in which an arm is forgotten: so short that what is forgotten may be taken for
// linear.
constexpr double kShort = 1.0 / 16;

}  // namespace

SpeedFactors::SpeedFactors(size_t num_arms, const SpeedNoise& noise)
    : noise_(noise),
      size_(num_arms + 1),
      log_factor_(size_),
      expected_(num_arms, 1.0),
      covariance_(size_ * size_),
      gain_(size_) {
  for (size_t i = 0; i + 1 < size_; ++i) {
    Covariance(i, i) = noise.table_error * noise.table_error;
  }
  Covariance(size_ - 1, size_ - 1) = noise.observation * noise.observation;
}

double SpeedFactors::Expected(size_t arm, uint64_t now) const {
  const double idle = static_cast<double>(now - std::min(now, last_)) / noise_.forget_decisions;
  if (idle < kShort) {
    return expected_[arm] * (1 - idle * log_factor_[arm]);
  }
  return std::exp(log_factor_[size_ - 1] + std::exp(-idle) * log_factor_[arm]);
}

// What passes while nothing is observed: the machine may have moved, and arms go back to where
// nothing is known of them.
void SpeedFactors::Age(double decisions) {
  const size_t machine = size_ - 1;
  const double kept = std::exp(-decisions / noise_.forget_decisions);
  const double fresh = (1 - kept * kept) * noise_.table_error * noise_.table_error;
  for (size_t i = 0; i < machine; ++i) {
    log_factor_[i] *= kept;
    for (size_t j = 0; j < machine; ++j) {
      Covariance(i, j) *= kept * kept;
    }
    Covariance(i, i) += fresh;
    Covariance(i, machine) *= kept;
    Covariance(machine, i) *= kept;
  }
  Covariance(machine, machine) += decisions * noise_.machine_step * noise_.machine_step;
}

void SpeedFactors::Observe(size_t arm, double observed_over_tabulated, uint64_t now) {
  if (now > last_) {
    Age(static_cast<double>(now - last_));
    last_ = now;
  }
  const size_t machine = size_ - 1;
  const double most = std::log(kMost);
  const double sample = std::clamp(std::log(observed_over_tabulated), -most, most);
  const double surprise = sample - log_factor_[machine] - log_factor_[arm];
  const double variance = Covariance(machine, machine) + 2 * Covariance(machine, arm) +
                          Covariance(arm, arm) + noise_.observation * noise_.observation;
  for (size_t i = 0; i < size_; ++i) {
    gain_[i] = Covariance(i, machine) + Covariance(i, arm);
  }
  for (size_t i = 0; i < size_; ++i) {
    const double share = gain_[i] / variance;
    log_factor_[i] += share * surprise;
    for (size_t j = 0; j < size_; ++j) {
      Covariance(i, j) -= share * gain_[j];
    }
  }
  for (size_t i = 0; i < machine; ++i) {
    expected_[i] = std::exp(log_factor_[machine] + log_factor_[i]);
  }
}

}  // namespace kvik::control
