// SPDX-License-Identifier: Apache-2.0
// control/speed_factor.h: how real times of one stage compare with tabulated ones, learned from
// noisy observations of whichever arm was used.
//
//   observed / tabulated = machine * arm * noise
//
// The machine's factor moves (other work on its cores slows every arm) and goes nowhere in
// particular; an arm's own (the table was not quite right) is near 1 and drifts slowly around it.
// In logarithms both are sums, so this is a Kalman filter over all factors together: an observation
// is divided between the machine and the arm by how uncertain each is, and what it says of the
// machine corrects at once what was believed of every arm.
//
// Thread-compatible. Observe is O(arms^2), Expected O(1); neither allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvik::control {

struct SpeedNoise {
  double observation = 0.2;       // standard deviation of log noise, of one transfer
  double table_error = 0.2;       // of an arm's own factor, as long as nothing is known of it
  double machine_step = 0.05;     // how far the machine's moves from one decision to the next
  double forget_decisions = 300;  // in which what is known of an arm loses two thirds of its weight
};

class SpeedFactors {
 public:
  SpeedFactors(size_t num_arms, const SpeedNoise& noise);

  // Observed over tabulated time that is expected of an arm at decision number `now`.
  [[nodiscard]] double Expected(size_t arm, uint64_t now) const;

  // `now` never decreases.
  void Observe(size_t arm, double observed_over_tabulated, uint64_t now);

 private:
  [[nodiscard]] double& Covariance(size_t a, size_t b) { return covariance_[a * size_ + b]; }
  void Age(double decisions);

  SpeedNoise noise_;
  size_t size_;                     // arms, and the machine as the last one
  std::vector<double> log_factor_;  // [size]
  std::vector<double> expected_;    // [arms] exp(machine + arm), as of last_
  std::vector<double> covariance_;  // [size, size]
  std::vector<double> gain_;        // [size] scratch
  uint64_t last_ = 0;
};

}  // namespace kvik::control
