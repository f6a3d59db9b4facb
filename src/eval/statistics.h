// SPDX-License-Identifier: Apache-2.0
// eval/statistics.h: one number with its uncertainty from many prompts.
//
// Positions of one prompt are not independent, prompts are: intervals come from a bootstrap that
// draws whole prompts with replacement. Pure; equal seeds give equal intervals.
#pragma once

#include <cstdint>
#include <span>

#include "eval/quality.h"

namespace kvik::eval {

struct Estimate {
  double value = 0;
  double low = 0;  // of the central 95 %
  double high = 0;
};

struct CellQuality {
  int64_t prompts = 0;
  int64_t positions = 0;
  int64_t sure_positions = 0;
  Estimate bits_per_value;  // every byte counted
  Estimate cr;              // 16 / bits_per_value
  Estimate kl;              // nats a position
  Estimate top1;            // agreement at all positions
  Estimate q;               // agreement at sure positions; 1 where there are none
  Estimate ppl;             // perplexity of the text
  Estimate ppl_raw;
  Estimate ppl_ratio;  // ppl / ppl_raw, prompt by prompt the same text
  Estimate mse;        // of all values; of keys and of values alone
  Estimate key_mse;
  Estimate value_mse;
  Estimate logit_error;  // relative root mean squares: see AttentionError
  Estimate output_error;
  int64_t scored_prompts = 0;  // of which there is a score
  Estimate score;              // in [0, 1], on coded KV and on raw KV
  Estimate score_raw;
};

constexpr int kResamples = 1000;

// REQUIRES: `prompts` is not empty.
CellQuality Summarize(std::span<const PromptQuality> prompts, uint64_t seed,
                      int resamples = kResamples);

}  // namespace kvik::eval
