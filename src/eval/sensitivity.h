// SPDX-License-Identifier: Apache-2.0
// eval/sensitivity.h: how much an error in one layer's keys or values changes what the model says,
// by trying.
//
// The quadratic forms of attention_metric.h compare errors within a layer. How far a move of a
// layer's output changes the next token is measured here: noise of a known size is put on the keys
// or the values of one layer of a prompt, and the divergence of the next tokens of the text is
// counted.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "eval/calibration_kv.h"
#include "eval/linear_algebra.h"
#include "model/model.h"

namespace kvik::eval {

struct SensitivityOptions {
  int32_t prompts = 6;  // spread over the sequences
  int32_t prompt_tokens = 448;
  int32_t judged_tokens = 32;
  int32_t sink_tokens = 4;  // get no noise
  uint64_t seed = 1;
};

// What noise looks like: errors of coefficients are independent, with the given deviation. Bases
// are of keys before their rotation where the model rotates, [layers * kv_heads].
struct NoiseShape {
  std::vector<WeightedBasis> bases;
  std::vector<double> deviations;  // [layers]
};

// Nats a position by (layer, part) [layers * 2], divided by the square of the deviation. `on_step`
// is told how many of layers * 2 * prompts are done. REQUIRES: the model that `kv` came from.
Result<std::vector<double>> MeasureSensitivity(model::Model& model, const CalibrationKv& kv,
                                               const NoiseShape& keys, const NoiseShape& values,
                                               const SensitivityOptions& options,
                                               const std::function<void(size_t steps)>& on_step);

}  // namespace kvik::eval
