// SPDX-License-Identifier: Apache-2.0
// base/testing/bench_options.h: what the benchmark programs with a table share: flags and the way
// out on an error.
#pragma once

#include <errno.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/result.h"

namespace kvik::testing {

struct BenchOptions {
  bool quick = false;
  int threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  std::string only;       // cases whose name contains it
  std::string model;      // a model file, for programs that take one
  bool cpu_time = false;  // count the thread's own time; one thread then
};

// Reads the flags; nullopt after printing the usage when one is unknown.
inline std::optional<BenchOptions> ParseBenchOptions(int argc, char** argv, bool takes_model) {
  BenchOptions options;
  for (int i = 1; i < argc; ++i) {
    const bool has_value = i + 1 < argc;
    if (std::strcmp(argv[i], "--quick") == 0) {
      options.quick = true;
    } else if (std::strcmp(argv[i], "--threads") == 0 && has_value) {
      options.threads = std::max(1, std::atoi(argv[++i]));
    } else if (std::strcmp(argv[i], "--only") == 0 && has_value) {
      options.only = argv[++i];
    } else if (takes_model && std::strcmp(argv[i], "--model") == 0 && has_value) {
      options.model = argv[++i];
    } else if (std::strcmp(argv[i], "--cpu-time") == 0) {
      options.cpu_time = true;
    } else {
      std::fprintf(stderr, "usage: %s [--quick] [--threads N] [--only SUBSTRING]%s [--cpu-time]\n",
                   program_invocation_short_name, takes_model ? " [--model FILE]" : "");
      return std::nullopt;
    }
  }
  if (options.cpu_time) {
    options.threads = 1;
  }
  return options;
}

// The value, or the end of the program with the error on stderr.
template <typename T>
T OrDie(Result<T> result) {
  if (!result.has_value()) {
    std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, result.error().message.c_str());
    std::exit(1);
  }
  return std::move(*result);
}

}  // namespace kvik::testing
