// SPDX-License-Identifier: Apache-2.0
// tests/memory/allocation_meter.h: how many bytes of the heap a program holds, libraries included.
// Linked into a test, it takes the place of malloc and its relatives; under the address and thread
// sanitizers it listens to theirs.
#pragma once

#include <cstddef>

namespace kvik::testing {

// Bytes that are allocated and not freed, as malloc rounds them.
size_t HeldBytes();

// Most bytes that `run` made the program hold beyond what it held before. A request that failed
// counts as if it had been met. REQUIRES: no other thread allocates meanwhile.
void StartPeak();
size_t PeakBytes();
template <typename Run>
size_t PeakOf(Run&& run) {
  StartPeak();
  run();
  return PeakBytes();
}

}  // namespace kvik::testing
