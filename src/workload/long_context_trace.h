// SPDX-License-Identifier: Apache-2.0
// workload/long_context_trace.h: sessions about long documents (workload/long_context.h) as the
// cache sees them.
#pragma once

#include <cstdint>

#include "workload/long_context.h"
#include "workload/trace.h"

namespace kvik::workload {

// Arrivals are those of answers that take no time; gap_us has what a server that takes some needs.
// Equal loads give equal traces. REQUIRES: block_size_tokens >= 1.
Trace TraceOf(const LongContextLoad& load, int32_t block_size_tokens);

}  // namespace kvik::workload
