// SPDX-License-Identifier: Apache-2.0
// workload/plan_trace.h: what a load generator would send (workload/load_plan.h) as the cache sees
// it, so that the load of a benchmark can be replayed without a server. Pure.
#pragma once

#include <cstdint>
#include <span>

#include "workload/load_plan.h"
#include "workload/trace.h"

namespace kvik::workload {

// In texts, this many bytes count as a token, as in traces of agents' text; a rest counts as none.
constexpr int32_t kTextBytesPerToken = 4;

// Arrivals are those of answers that take no time; gap_us has what a server that takes some needs.
// Answers that the plan leaves to the model are of its max_tokens and like no other text. Equal
// plans give equal traces. `starts_s`: of the sessions, ascending. REQUIRES: one start a session;
// block_size_tokens >= 1.
Trace TraceOf(const LoadPlan& plan, std::span<const double> starts_s, int32_t block_size_tokens);

}  // namespace kvik::workload
