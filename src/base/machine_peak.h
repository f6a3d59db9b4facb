// SPDX-License-Identifier: Apache-2.0
// base/machine_peak.h: what this machine can do at best, measured now. Benchmarks state their
// results as shares of it, since two hosts, or one host at two times of day, are not comparable.
#pragma once

#include <utility>

#include "base/aligned_buffer.h"
#include "base/clock.h"
#include "base/isa.h"
#include "base/result.h"
#include "base/thread_pool.h"

namespace kvik {

// Multiply-adds on registers only, all threads of the pool at once, in GFLOP/s (two operations
// each): the best of several short runs, about 0.1 s in all. REQUIRES: IsaSupported(isa) and
// ComputeSupported(isa, type).
double MeasurePeakGflops(const Clock& clock, Isa isa, ComputeType type, ThreadPool& pool);

// Sequential reads of memory far larger than the caches, all threads at once. Bandwidth is shared
// with whatever else the host runs and changes from second to second: a benchmark takes a pass next
// to every run of its own and compares the two.
class ReadProbe {
 public:
  static Result<ReadProbe> Create();  // holds 256 MiB, touched

  // GB/s of one pass over all of it, some milliseconds. REQUIRES: IsaSupported(isa).
  double PassGbps(const Clock& clock, Isa isa, ThreadPool& pool) const;

 private:
  explicit ReadProbe(AlignedBuffer buffer) : buffer_(std::move(buffer)) {}
  AlignedBuffer buffer_;
};

}  // namespace kvik
