// SPDX-License-Identifier: Apache-2.0
// model/rope.h: rotary frequencies of every scaling variant, and the angles' cosines and sines.
//
// Head dimensions i and i + head_dim / 2 rotate together ("half-split"), at frequency i. All
// variants differ in the frequencies and in one factor on cosine and sine alone. Immutable,
// thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/config.h"

namespace kvik::model {

class RopeTable {
 public:
  // REQUIRES: ValidateConfig accepts `rope` with this head_dim.
  RopeTable(const RopeConfig& rope, int32_t head_dim);

  // Radians per position, [head_dim / 2].
  [[nodiscard]] std::span<const double> frequencies() const { return frequencies_; }
  // What cosine and sine are multiplied by: yarn's attention factor, else 1.
  [[nodiscard]] double scale() const { return scale_; }

  // Scaled cosine and sine of every frequency at `position`, each [head_dim / 2]. The same bits on
  // every host (base/rotary_angles.h).
  void Angles(int32_t position, std::span<float> cosines, std::span<float> sines) const;

 private:
  std::vector<double> frequencies_;
  double scale_ = 1.0;
};

}  // namespace kvik::model
