// SPDX-License-Identifier: Apache-2.0
// app/calibrate.h: kvik calibrate: a profile library for a model from real texts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/runtime.h"
#include "base/result.h"

namespace kvik::app {

struct CalibrateOptions {
  RuntimeOptions runtime;  // model, arithmetic, threads
  std::vector<std::string> texts;
  std::string out;         // folder of the library
  std::string profiles;    // file of `name = pipeline` lines; empty: eval::StarterProfiles
  int32_t sequences = 16;  // of the texts, each of about 1,024 tokens
  uint64_t seed = 1;
  std::string command;  // as typed, for the library
};

// Says how long it will take, then writes the library, without quality. Needs memory for the KV of
// all sequences.
Result<int> Calibrate(const CalibrateOptions& options);

}  // namespace kvik::app
