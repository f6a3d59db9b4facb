// SPDX-License-Identifier: Apache-2.0
// app/soak.h: kvik selftest soak: does everything hold together for long, under every policy?
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/runtime.h"
#include "base/progress.h"
#include "base/result.h"

namespace kvik::app {

struct SoakOptions {
  // Model, arithmetic, KV storage, block size, threads. Policy: its options; the name may be "all".
  RuntimeOptions runtime;
  uint64_t seed = 0;
  double minutes = 1;      // no request comes after; 0: until the rounds are done
  int32_t rounds = 0;      // engines, one after the other, each policy in turn; 0: as time allows
  int32_t requests = 150;  // of a round
  Progress::Mode progress = Progress::Mode::kAuto;
};

// What "all" stands for: every policy, and each overlay on two of them.
std::vector<std::string> SoakPolicies();

// Rounds of app/soak_round.h on one model. Prints a table by policy and a last line of counts,
// among them a digest of all answers, which depends on the seed alone if the rounds were given.
// Exit code 1 when anything differed or a promise of the engine was broken, and when there were no
// gaps (if the policy makes them), preemptions, evictions or cancelled requests of every kind.
Result<int> SelftestSoak(const SoakOptions& options);

}  // namespace kvik::app
