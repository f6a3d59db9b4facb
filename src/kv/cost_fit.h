// SPDX-License-Identifier: Apache-2.0
// kv/cost_fit.h: the cost model of one machine and model, from steps that were timed.
#pragma once

#include <span>

#include "base/result.h"
#include "kv/cost_model.h"

namespace kvik::kv {

struct CostSample {
  StepFeatures features;
  double us = 0;
};

struct CostFit {
  CostModel model;
  double r_squared = 0;          // 1 - residual / total sum of squares
  double mean_abs_error_us = 0;  // over the samples
};

// How well `model` explains the samples. REQUIRES: not empty.
CostFit Judge(const CostModel& model, std::span<const CostSample> samples);

// Linear least squares over k1..k7; a coefficient whose feature never occurs is 0. Negative costs
// do not exist, so coefficients below zero are left out and the rest fitted again (k3 too: cached
// tokens are read, never refunded).
//
// kInvalidInput says what is wrong with a fit that must not be used: fewer than 16 samples, R^2 not
// above 0.99, k5 or a = k2 - k3 not above 0. The caller then takes CostModel::Default() and says
// so.
Result<CostFit> FitCostModel(std::span<const CostSample> samples);

}  // namespace kvik::kv
