// SPDX-License-Identifier: Apache-2.0
// control/testing/counted_allocations.h: how often this program has asked for memory, to show that
// some code never does. The test program that includes allocation_counter_test.cc counts.
#pragma once

#include <cstdint>

namespace kvik::control::testing {

// Calls of operator new by the calling thread so far.
[[nodiscard]] uint64_t CountedAllocations();

}  // namespace kvik::control::testing
