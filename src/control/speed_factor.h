// SPDX-License-Identifier: Apache-2.0
// control/speed_factor.h: how real times of one stage compare with tabulated ones, learned from
// noisy observations of whichever arm was used.
//
//   observed / tabulated = machine * arm * noise
//
// The machine's factor moves (other work on its cores slows every arm); an arm's own is nearly
// constant (the table was not quite right) and unknown at first. In logarithms both are sums, so
// each observation is divided between the two by how uncertain they are: a scalar Kalman filter
// that ignores their correlation. So what one arm shows at once corrects what is expected of all.
//
// Thread-compatible.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvik::control {

struct SpeedNoise {
  double observation = 0.2;       // standard deviation of log noise, of one transfer
  double table_error = 0.2;       // of an arm's own factor before its first use
  double machine_step = 0.07;     // how far the machine's moves from one observation to the next
  double arm_step = 0.01;         // an arm's, from one decision to the next
  double forget_decisions = 200;  // an arm's own factor is believed half after so many without it
};

class SpeedFactors {
 public:
  SpeedFactors(size_t num_arms, const SpeedNoise& noise)
      : noise_(noise),
        machine_variance_(noise.observation * noise.observation),
        arms_(num_arms, {0, noise.table_error * noise.table_error, 0}) {}

  // Observed over tabulated time that is expected of an arm at decision number `now`.
  [[nodiscard]] double Expected(size_t arm, uint64_t now) const {
    const Arm& a = arms_[arm];
    return a.seen ? std::exp(machine_ + a.log_factor * Trust(a, now)) : machine_factor_;
  }
  [[nodiscard]] double machine() const { return machine_factor_; }

  void Observe(size_t arm, double observed_over_tabulated, uint64_t now) {
    Arm& a = arms_[arm];
    const double most = std::log(kMost);
    const double sample = std::clamp(std::log(observed_over_tabulated), -most, most);
    a.log_factor *= Trust(a, now);
    const double idle = static_cast<double>(now - std::min(now, a.last));
    a.variance = std::min(a.variance + idle * noise_.arm_step * noise_.arm_step,
                          noise_.table_error * noise_.table_error);
    machine_variance_ += noise_.machine_step * noise_.machine_step;
    const double total = machine_variance_ + a.variance + noise_.observation * noise_.observation;
    const double surprise = sample - machine_ - a.log_factor;
    const double machine_gain = machine_variance_ / total;
    const double arm_gain = a.variance / total;
    machine_ += machine_gain * surprise;
    machine_factor_ = std::exp(machine_);
    machine_variance_ *= 1 - machine_gain;
    a.log_factor += arm_gain * surprise;
    a.variance *= 1 - arm_gain;
    a.last = now;
    a.seen = true;
  }

 private:
  // One observation cannot say more than this: a transfer that stalled is no measure of speed.
  static constexpr double kMost = 8;
  struct Arm {
    double log_factor = 0;
    double variance = 0;
    uint64_t last = 0;
    bool seen = false;
  };
  [[nodiscard]] double Trust(const Arm& a, uint64_t now) const {
    const double idle = static_cast<double>(now - std::min(now, a.last));
    return noise_.forget_decisions / (noise_.forget_decisions + idle);
  }

  SpeedNoise noise_;
  double machine_ = 0;  // log
  double machine_factor_ = 1;
  double machine_variance_;
  std::vector<Arm> arms_;
};

}  // namespace kvik::control
