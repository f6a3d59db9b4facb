// SPDX-License-Identifier: Apache-2.0
// control/load_plan.h: load a request's KV from elsewhere, compute it, or both at once.
//
// Computing a token costs more the later its position, loading it does not. So the engine computes
// from the front while loads come in from the tail, and the plan is where the two meet: at the
// boundary of chunks that makes
//
//   max(compute in front of it, load behind it) + compute of what could not be loaded behind it
//
// least, with weights for what is dearer to compute than it takes. All-load and all-compute are
// two of the choices. When speeds turn out different, plan
// again with what is left: the same function.
//
// Pure; microseconds from "now".
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "control/predictor.h"
#include "kv/block_key.h"
#include "kv/cost_model.h"

namespace kvik::control {

// Positions [first, end).
struct TokenRange {
  int64_t first = 0;
  int64_t end = 0;
  [[nodiscard]] int64_t size() const { return end - first; }
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

// One way to get a chunk. Of a load that is under way: what is left of it.
struct LoadEncoding {
  double wire_bytes = 0;
  double decode_us = 0;    // as expected now, by all threads that decode
  double ready_in_us = 0;  // until its last byte can be sent
  kv::BlockQuality quality{};
  double link_factor = 1;  // time for a byte on its link over LoadProblem::us_per_byte
};

struct LoadChunk {
  TokenRange tokens{};                        // all of them missing
  std::span<const LoadEncoding> encodings{};  // may be empty
  // How many times the time to compute it counts in the choice, if it can be loaded: more than once
  // where computing it also costs others. Times are reported as they are.
  double compute_weight = 1;
};

struct LoadProblem {
  std::span<const TokenRange> missing{};  // ascending, disjoint; the last one ends the prompt
  std::span<const LoadChunk> chunks{};    // ascending, disjoint, each within one of `missing`
  kv::MinQuality quality{};

  double us_per_byte = 0;    // of the link; > 0
  double load_start_us = 0;  // until the first byte can come: round trip, queue
  int32_t frames_per_chunk = 1;
  Overlap overlap = Overlap::kPipelined;  // of wire and decoding

  kv::CostModel compute{};
  double compute_factor = 1;    // observed over modelled time (ComputePace)
  double compute_start_us = 0;  // until the engine begins: requests before this one
  int32_t step_tokens = 512;    // that the engine computes at a time
  // Of the engine's speed, what is left while chunks are decoded beside it: (0, 1].
  double compute_share = 1;

  int64_t slo_us = 0;  // what is left of the budget; 0: none
};

struct LoadPlan {
  static constexpr int32_t kCompute = -1;
  std::vector<int32_t> encoding;  // [chunks] which one is loaded, or kCompute
  int32_t first_loaded = 0;       // chunks before it are computed; = chunks: nothing is loaded
  double expected_us = 0;         // until the last prompt token is computed
  double weighed_us = 0;          // the same with LoadChunk::compute_weight: the least of all
  double load_us = 0;             // until the last chunk is there; 0: nothing is loaded
  double front_us = 0;            // until the front is computed
  double all_load_us = 0;         // the least possible load, everything else computed
  double all_compute_us = 0;
  double wire_bytes = 0;  // of what is loaded
  bool in_time = true;
};

// Every encoding it names satisfies problem.quality. O(chunks * encodings).
[[nodiscard]] LoadPlan PlanLoad(const LoadProblem& problem);

// Whether speeds have moved enough since `planned` for a plan to be worth making again.
[[nodiscard]] bool SpeedsMoved(const LoadProblem& planned, double us_per_byte,
                               double compute_factor);

// "4 of 8 chunks loaded (0.40 MB): 12.1 ms expected, ..."; which profiles these are the caller
// knows.
[[nodiscard]] std::string WhyText(const LoadPlan& plan);

// How the engine's real speed compares with its cost model: a factor on modelled time.
class ComputePace {
 public:
  explicit ComputePace(double alpha = 0.2) : alpha_(alpha) {}
  // `modelled_us` > 0.
  void Add(double modelled_us, double observed_us);
  [[nodiscard]] double factor() const { return factor_; }

 private:
  double alpha_;
  double factor_ = 1;
  bool measured_ = false;
};

}  // namespace kvik::control
