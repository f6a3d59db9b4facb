// SPDX-License-Identifier: Apache-2.0
// eval/attention_metric.h: what errors in keys and values cost, as the model's own queries on real
// text see it, and which heads look far back.
//
// The output of a layer's attention, after its output projection, is sum_j p_j W v_j. To first
// order an error e of value j moves it by p_j W e, and an error e of key j moves logit j by
// s q.e and the output by p_j W (v_j - o) s q.e, where o is the head's output. Squared and summed
// over queries, both are quadratic forms in e. So keys and values, and all heads of a layer, are
// measured with one yardstick: the squared distance that the layer's output moves.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/thread_pool.h"
#include "eval/calibration_kv.h"

namespace kvik::eval {

struct AttentionMetricOptions {
  int32_t sink_tokens = 4;       // the first ones: their errors are not counted (kept precisely)
  int32_t near_tokens = 16;      // neither are those just before a query: when a model answers,
                                 // they are its own answer
  int32_t samples_of_query = 8;  // keys that stand for all that a query reads
  uint64_t seed = 1;
};

// Of one kv head; matrices are [head_dim, head_dim], a mean over queries, summed over the query
// heads of the group.
struct HeadMetric {
  std::vector<double> rotated_key;    // e is an error of a key as it lies in the cache
  std::vector<double> unrotated_key;  // of a key before its rotation; empty without rotation
  std::vector<double> value;
};

// [layers * kv_heads].
std::vector<HeadMetric> ComputeAttentionMetric(const CalibrationKv& kv,
                                               const AttentionMetricOptions& options,
                                               ThreadPool& pool,
                                               const std::function<void(size_t heads)>& on_head);

struct HeadScoreOptions {
  int32_t sink_tokens = 64;
  int32_t recent_tokens = 256;
};

// How much a kv head needs what is neither at the beginning nor recent, each [layers * kv_heads],
// averaged over the query heads of its group and the queries that see such tokens.
struct HeadScores {
  std::vector<double> attention;  // the share of its attention that goes there, [0, 1]
  // How far the layer's attention output moves when the head sees nothing else, squared, relative
  // to the squared length of the head's part of it.
  std::vector<double> output;
};
// `sequence` is long, and repeats itself, so that there is something to look back for.
HeadScores ComputeHeadScores(const CalibrationKv& kv, const CalibrationSequence& sequence,
                             const HeadScoreOptions& options, ThreadPool& pool);

}  // namespace kvik::eval
