// SPDX-License-Identifier: Apache-2.0
// app/selftest.h: kvik selftest exact: is what this machine computes independent of how?
#pragma once

#include <cstdint>

#include "app/runtime.h"
#include "base/progress.h"
#include "base/result.h"

namespace kvik::app {

struct SelftestOptions {
  RuntimeOptions runtime;  // model, arithmetic and KV storage; the rest is varied
  uint64_t seed = 0;
  int32_t engines = 24;      // configurations to try; fewer with a model of 300M weights or more
  double max_seconds = 240;  // no new configuration is begun after
  Progress::Mode progress = Progress::Mode::kAuto;
};

// Answers a set of prompts alone, on one thread, without a cache; then again in random company:
// batches, chunk sizes 1 to 512, 1 and 2 threads, block sizes, caches from which blocks were
// dropped at random, tight pools that preempt. Tokens and log-probabilities must be equal bit for
// bit. Then the same model from float32 copies of its weights, as GGUF and as a Hugging Face folder
// in the temporary folder, at float32 arithmetic.
//
// The last line counts cases, gaps, preemptions and differences and digests the answers. Exit code
// 1 on any difference, or when no gap or no preemption occurred.
Result<int> SelftestExact(const SelftestOptions& options);

}  // namespace kvik::app
