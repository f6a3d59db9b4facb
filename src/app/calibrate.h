// SPDX-License-Identifier: Apache-2.0
// app/calibrate.h: kvik calibrate: a profile library for a model from real texts, with what its
// profiles cost in quality on real prompts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/runtime.h"
#include "base/result.h"

namespace kvik::app {

struct CalibrateOptions {
  RuntimeOptions runtime;          // model, arithmetic, threads
  std::vector<std::string> texts;  // empty: the library that is in `out` is measured anew
  std::string out;                 // folder of the library
  std::string profiles;            // file of `name = pipeline` lines; empty: eval::StarterProfiles
  int32_t sequences = 20;          // of the texts, each of about 1,024 tokens
  uint64_t seed = 1;
  std::string data;          // prompts that quality is judged on; empty: it is not
  std::string cells;         // as eval::ParseCells; empty: eval::StandardCells
  int64_t positions = 1024;  // of a cell, at least
  std::string cache_folder;  // of raw KV and results; empty: in CacheFolder()
  std::string command;       // as typed, for the library
};

// Says how long it will take, then writes the library, and again when quality is known. What was
// measured before is taken from the cache, so that a run that was ended goes on. Needs memory for
// the KV of all sequences.
Result<int> Calibrate(const CalibrateOptions& options);

}  // namespace kvik::app
