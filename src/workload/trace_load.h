// SPDX-License-Identifier: Apache-2.0
// workload/trace_load.h: what was recorded elsewhere, as a load. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "workload/load_plan.h"

namespace kvik::workload {

struct TraceLoadOptions {
  int32_t requests = 0;        // the first so many, 0: all
  int32_t context_tokens = 0;  // longer ones are left out; 0: none
  int32_t scale = 1;           // block traces: lengths and blocks are divided by it
  uint64_t seed = 0;           // of tokens that the trace says nothing of
};

// The shapes of trace_reader.h. Blocks: equal ids become equal tokens, the rest of a prompt and the
// answer are tokens of their own. Text: prompts and answers as they are, four bytes count as a
// token. A call of a session that the trace names waits for the answer before it and for its
// recorded time; calls without a session are sessions of their own. kInvalidInput: the text cannot
// be read, or nothing is left to send.
Result<LoadPlan> PlanTrace(std::string_view text, const std::string& name,
                           const TraceLoadOptions& options);

}  // namespace kvik::workload
