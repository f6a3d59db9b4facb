// SPDX-License-Identifier: Apache-2.0
// control/envelope.h: which arm is the fastest at which bandwidth. Over x = 1 / bandwidth every arm
// is a line (or the greater of two); the least of all is piecewise one arm's, and where it changes
// two of them intersect.
//
// Immutable; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "control/predictor.h"

namespace kvik::control {

struct ArmCurve {
  int32_t arm = 0;
  PathCurve curve;
};

class Envelope {
 public:
  struct Piece {
    double x_begin = 0;  // microseconds a byte; ends where the next one begins
    int32_t arm = 0;
  };

  // Exact for all x >= 0. Where arms are equally fast the piece is that of one of them; neighbours
  // differ. REQUIRES: not empty; finite values, slopes >= 0.
  explicit Envelope(std::span<const ArmCurve> curves);

  [[nodiscard]] const std::vector<Piece>& pieces() const { return pieces_; }  // from x = 0 on
  // Index of the piece that holds x. O(log pieces).
  [[nodiscard]] size_t Find(double x) const;

 private:
  void Append(const Piece& piece);

  std::vector<Piece> pieces_;
};

}  // namespace kvik::control
