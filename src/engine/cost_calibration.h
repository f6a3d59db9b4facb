// SPDX-License-Identifier: Apache-2.0
// engine/cost_calibration.h: times steps of the running model to fit its cost model.
//
// Steps of 16 to 512 tokens behind 0 to 6K tokens, one segment and several, alone and beside
// decodes. What the KV says does not matter, so contexts are not computed first: all positions
// share few blocks, whose content is garbage afterwards.
#pragma once

#include <cstdint>
#include <functional>

#include "base/clock.h"
#include "base/result.h"
#include "engine/executor.h"
#include "kv/cost_fit.h"

namespace kvik::engine {

struct CalibrationOptions {
  int32_t num_blocks = 0;  // of the executor's arena; all may be written
  int32_t block_size_tokens = 16;
  int64_t budget_us = 30'000'000;  // dearer steps are left out when time would run out
  // Called after every timed step with what is done and the total; begins again when times made no
  // sense together and are taken again.
  std::function<void(uint64_t done, uint64_t total)> progress;
};

// Runs on the thread that owns the executor, before any request; about 60 kinds of steps, each the
// faster of two runs. The executor's errors are passed on; FitCostModel says when the result must
// not be used.
Result<kv::CostFit> CalibrateCost(Executor& executor, const Clock& clock,
                                  const CalibrationOptions& options);

}  // namespace kvik::engine
