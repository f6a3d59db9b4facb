// SPDX-License-Identifier: Apache-2.0
// app/machine_cost.h: the cost model of this model on this machine: measured once, then kept.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/progress.h"
#include "base/result.h"
#include "engine/executor.h"
#include "kv/cost_model.h"

namespace kvik::app {

enum class CostSource {
  kAuto,     // what is kept, else measured and kept
  kMeasure,  // measured anew and kept
  kDefault,  // CostModel::Default(): nothing is measured
};

struct MachineCostOptions {
  CostSource source = CostSource::kAuto;
  std::string folder;    // of kept results; it is made
  std::string numerics;  // Model::numerics_tag(): kernels, arithmetic and weights
  int32_t threads = 1;
  int32_t num_blocks = 0;  // of the executor's arena
  int32_t block_size_tokens = 16;
  Progress::Mode progress = Progress::Mode::kAuto;
};

// "costs" in CacheFolder().
std::string DefaultCostFolder();

struct KeptCost {
  std::string key;  // model, arithmetic, processor, threads: what the measurement depends on
  kv::CostModel model;
};
// The latest measurement that is kept in a folder and has `part` in its key, without a model at
// hand. kNotFound lists the keys there are, or says how to measure.
Result<KeptCost> NewestKeptCost(const std::string& folder, const std::string& part);

// Never fails: a measurement that explains too little is dropped with a warning and the default
// taken; a file that cannot be read or written costs a new measurement or a warning. Measuring
// takes at most half a minute and shows its progress on standard error. Before the first request,
// on the thread that owns the executor: the blocks hold garbage afterwards.
kv::CostModel MachineCostModel(engine::Executor& executor, const Clock& clock,
                               const MachineCostOptions& options);

}  // namespace kvik::app
