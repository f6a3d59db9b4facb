// SPDX-License-Identifier: Apache-2.0
// base/machine_peak.h: what this machine can do at best, measured now. Benchmarks state their
// results as shares of it, since two hosts, or one host at two times of day, are not comparable.
#pragma once

#include "base/clock.h"
#include "base/isa.h"
#include "base/thread_pool.h"

namespace kvik {

// Multiply-adds on registers only, all threads of the pool at once, in GFLOP/s (two operations
// each): the best of several short runs, about 0.1 s in all. REQUIRES: IsaSupported(isa) and
// ComputeSupported(isa, type).
double MeasurePeakGflops(const Clock& clock, Isa isa, ComputeType type, ThreadPool& pool);

// Sequential reads of memory far larger than the caches, all threads at once, in GB/s: the best of
// several passes. Touches 256 MiB; 0 when they cannot be had.
double MeasureReadGbps(const Clock& clock, Isa isa, ThreadPool& pool);

}  // namespace kvik
