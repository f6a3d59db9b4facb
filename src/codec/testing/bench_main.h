// SPDX-License-Identifier: Apache-2.0
// codec/testing/bench_main.h: what the benchmarks of single stages do between flags and exit.
#pragma once

#include <cstdio>

#include "base/isa.h"
#include "base/testing/bench_options.h"

namespace kvik::codec::testing {

// Bench(isa, options).Run(shape) of every shape, which says whether its goals are met. Returns the
// exit status: 0, 1 when a goal is missed, 2 for unknown flags.
template <class Bench, class Shapes>
int BenchMain(int argc, char** argv, const Shapes& shapes) {
  const auto options = kvik::testing::ParseBenchOptions(argc, argv, false);
  if (!options) {
    return 2;
  }
  const Isa isa = kvik::testing::OrDie(SelectIsa());
  std::printf("kernels: %s\n", IsaName(isa));
  const Bench bench(isa, *options);
  bool met = true;
  for (const auto& shape : shapes) {
    met = bench.Run(shape) && met;
  }
  return met ? 0 : 1;
}

}  // namespace kvik::codec::testing
