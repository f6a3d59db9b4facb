// SPDX-License-Identifier: Apache-2.0
// app/soak_round.h: one engine under everything at once: conversations that share beginnings and
// come back, a pool that holds hardly more than the longest request, priorities, tenants, hints,
// forced answers, and clients that leave at any time.
//
// Time is the round's own: a step takes as long as its tokens say, and pauses between turns cost
// nothing. So a round is the same for the same random numbers, and policies see minutes pass.
#pragma once

#include <cstdint>
#include <functional>

#include "base/result.h"
#include "base/rng.h"
#include "base/sha256.h"
#include "engine/executor.h"
#include "kv/eviction_policy.h"

namespace kvik::app {

struct SoakTally {
  int64_t rounds = 0;
  int64_t requests = 0;
  int64_t cancelled_waiting = 0;    // before their first step
  int64_t cancelled_computing = 0;  // then, before their first token
  int64_t cancelled_answering = 0;
  int64_t gaps = 0;  // requests that reused a run which does not begin at position 0
  int64_t preemptions = 0;
  int64_t evictions = 0;   // blocks
  int64_t duplicates = 0;  // blocks that two requests computed at once
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t steps = 0;
  int64_t compared = 0;  // requests asked again alone
  int64_t differing_tokens = 0;
  int64_t differing_logprobs = 0;

  SoakTally& operator+=(const SoakTally& other);
  [[nodiscard]] int64_t cancelled() const {
    return cancelled_waiting + cancelled_computing + cancelled_answering;
  }
};

struct SoakRoundOptions {
  kv::PolicyOptions policy;
  std::string numerics;  // of the executors
  int32_t block_size_tokens = 16;
  int32_t num_blocks = 0;         // of `executor`
  int32_t longest_tokens = 0;     // of a request, with its answer; num_blocks hold it
  int32_t max_batch_rows = 0;     // of both executors; at least 16
  int32_t requests = 0;           // then no more come
  std::function<bool()> is_over;  // asked before every step; may be empty
};

// Runs the round on `executor`, then asks every fourth request that said something again on
// `alone`, which holds longest_tokens and computes the same. kInternal says which promise of the
// engine was broken; wrong answers are counted, and what would corrupt the cache aborts. Every
// answer is added to `hash`.
Result<SoakTally> RunSoakRound(const SoakRoundOptions& options, engine::Executor& executor,
                               engine::Executor& alone, Rng rng, Sha256& hash);

}  // namespace kvik::app
