// SPDX-License-Identifier: Apache-2.0
// workload/offline_bound.h: what no policy can beat, whatever it knows.
#pragma once

#include <cstdint>

#include "kv/cost_model.h"
#include "workload/trace.h"

namespace kvik::workload {

// An upper bound of what a cache of `cache_blocks` can save in requests [first_measured, end) of a
// replay, in the model's time (see workload/replay.h for the rules of the replay). Found by
// `rounds` improvements, each of which gives a valid bound; deterministic. O(rounds x block uses).
double SavingsBoundUs(const Trace& trace, const kv::CostModel& cost, int32_t cache_blocks,
                      size_t first_measured, int rounds = 200);

}  // namespace kvik::workload
