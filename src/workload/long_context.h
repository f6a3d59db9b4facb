// SPDX-License-Identifier: Apache-2.0
// workload/long_context.h: sessions of questions about a long document, as numbers: when they
// start, how long prompts and answers are, how long the user thinks. What a load generator sends
// and what a replay reads are both made from these. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace kvik::workload {

struct LongContextOptions {
  // Means over all requests, and the spread of the logarithm.
  double prompt_tokens = 34800;
  double output_tokens = 2600;
  double sigma = 0.6;
  int32_t requests = 300;
  int32_t turns = 5;            // of a session
  int32_t shared_tokens = 512;  // that all sessions begin with
  int32_t new_tokens = 64;      // of a turn after the first, on top of the answer before
  // No request is longer, its answer included: documents are cut, which lowers the mean (LongBench:
  // by 5 %).
  int32_t context_tokens = 65536;
  double requests_per_second = 0.02;
  double gap_ratio = 5;  // mean time between turns over mean time between session starts
  double cv = 0.25;      // of both times, which are Gamma
  int32_t scale = 1;     // lengths are divided by it
  uint64_t seed = 0;
};

// The options of "longbench:5", "longbench:10", "loogle:5", "loogle:10" and other ratios > 0.
// Nothing if it is no such name.
std::optional<LongContextOptions> LongContextNamed(std::string_view name);

struct LongContextTurn {
  double gap_s = 0;           // from the end of the answer before; 0 for the first turn
  int32_t prompt_tokens = 0;  // everything: the turn before, its answer, and what is new
  int32_t output_tokens = 0;
};
struct LongContextSession {
  double start_s = 0;  // ascending
  std::vector<LongContextTurn> turns;
};
struct LongContextLoad {
  int32_t shared_tokens = 0;  // after division
  std::vector<LongContextSession> sessions;
};

// ceil(requests / turns) sessions. Equal options give an equal load. REQUIRES: all numbers but
// shared_tokens and cv positive.
LongContextLoad MakeLongContext(const LongContextOptions& options);

}  // namespace kvik::workload
