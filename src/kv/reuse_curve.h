// SPDX-License-Identifier: Apache-2.0
// kv/reuse_curve.h: how likely a block is used again when it was last used x seconds ago.
//
//   f(x) = min(f1(x), f2(x)),  f1 = exp(-alpha x),  f2 = p exp(-r alpha (x - L)),  alpha = -ln p /
//   L
//
// Both meet at the lifespan L with the value p; since r > 1 the first is the lesser before and the
// second after it: likely reuse while a conversation lives, then a cliff. Each piece is
// exponential, so which of two weighted blocks is worth less does not change while both wait; that
// is what lets an ordered set hold them, and no other shape of curve has it.
//
// Blocks used several times add up inside each piece (DecayedUses).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/check.h"

namespace kvik::kv {

class ReuseCurve {
 public:
  // REQUIRES: 0 < reuse_prob < 1, slope_ratio > 1, lifespan_s > 0.
  ReuseCurve(double reuse_prob, double slope_ratio, double lifespan_s)
      : reuse_prob_(reuse_prob),
        slope_ratio_(slope_ratio),
        lifespan_s_(lifespan_s),
        alpha_(-std::log(reuse_prob) / lifespan_s) {
    KVIK_CHECK(reuse_prob > 0 && reuse_prob < 1 && slope_ratio > 1 && lifespan_s > 0);
  }

  [[nodiscard]] double F1(double x_s) const { return std::exp(-alpha_ * x_s); }
  [[nodiscard]] double F2(double x_s) const {
    return reuse_prob_ * std::exp(-slope_ratio_ * alpha_ * (x_s - lifespan_s_));
  }
  [[nodiscard]] double F(double x_s) const { return std::min(F1(x_s), F2(x_s)); }

  // Decay of the two pieces, per second.
  [[nodiscard]] double alpha() const { return alpha_; }
  [[nodiscard]] double steep_alpha() const { return slope_ratio_ * alpha_; }
  // ln f2(0) = ln p + r alpha L, the same for every L.
  [[nodiscard]] double ln_f2_start() const { return (1 - slope_ratio_) * std::log(reuse_prob_); }
  [[nodiscard]] double lifespan_s() const { return lifespan_s_; }
  // The factor of f2, as its logarithm, that moves where the pieces meet from L to `lifespan_s`.
  [[nodiscard]] double LnLambda(double lifespan_s) const {
    return (lifespan_s - lifespan_s_) * (slope_ratio_ - 1) * alpha_;
  }
  // The same p and r with another lifespan.
  [[nodiscard]] ReuseCurve WithLifespan(double lifespan_s) const {
    return {reuse_prob_, slope_ratio_, lifespan_s};
  }

 private:
  double reuse_prob_;
  double slope_ratio_;
  double lifespan_s_;
  double alpha_;
};

// All uses of a block at once: the sums of exp(-alpha (last - t_i)) and exp(-r alpha (last - t_i))
// over its uses t_i, as logarithms. Relative to the last use, so that no number grows with time and
// a change of alpha needs no conversion: the decay between uses keeps what it was.
struct DecayedUses {
  double ln_sum1 = 0;  // 0: one use
  double ln_sum2 = 0;
  int64_t last_us = 0;

  static DecayedUses Once(int64_t now_us) { return {.last_us = now_us}; }
  // REQUIRES: now_us >= last_us.
  void Use(const ReuseCurve& curve, int64_t now_us) {
    const double idle_s = static_cast<double>(now_us - last_us) * 1e-6;
    ln_sum1 = std::log1p(std::exp(ln_sum1 - curve.alpha() * idle_s));
    ln_sum2 = std::log1p(std::exp(ln_sum2 - curve.steep_alpha() * idle_s));
    last_us = now_us;
  }
};

}  // namespace kvik::kv
