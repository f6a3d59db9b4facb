// SPDX-License-Identifier: Apache-2.0
// eval/calibrate.h: the calibrated tensors that pipelines need, from keys, values and queries of
// real text.
//
//   center  ""          mean of each channel
//   klt     ""          principal components of the covariance, most variance first
//   qklt    ""          the basis of linear_algebra.h for the cost of errors of attention_metric.h
//   jklt    ""          the same for all heads of a layer together
//   affine  "/diagonal" scales after which all channels are alike in size, "/full" the matrix of
//                       linear_algebra.h with which a step for all channels costs least
//   ecsq    "/sigma"    standard deviation of each channel
//           "/weights"  steps that cost equally much: d = 1 everywhere is expected to cost 0.01
//           nats
//                       a position, and d^2 times as much in general
//   rans    tables      counts of symbols
//   scores/attention, scores/output    as ComputeHeadScores, for whatever ranks heads
//
// The first tokens of a text are not like the others; they count in none of these but the tables.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/isa.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "codec/pipeline.h"
#include "codec/side_info.h"
#include "eval/attention_metric.h"
#include "eval/calibration_kv.h"
#include "eval/transform_chain.h"

namespace kvik::eval {

// What is measured once, whatever the pipelines.
struct CalibrationFacts {
  std::vector<HeadMetric> metric;   // [layers * kv_heads]
  std::vector<double> sensitivity;  // [layers * 2]: MeasureSensitivity with the bases below
  HeadScores scores;
};

// Mean and covariance of one kv head's channels, or of those of all heads of a layer.
struct ChannelMoments {
  std::vector<double> mean;        // [channels]
  std::vector<double> covariance;  // [channels, channels]
};

// Of every (layer, kv head) [layers * kv_heads] at the end of a chain; with `joint` of every layer,
// all heads together [layers]. Fails as the chain does.
Result<std::vector<ChannelMoments>> MeasureMoments(const CalibrationKv& kv,
                                                   const TransformChain& chain, kv::KvPart part,
                                                   bool joint, int32_t sink_tokens,
                                                   ThreadPool& pool);

class Calibrator {
 public:
  // Borrows everything for its lifetime.
  Calibrator(const CalibrationKv& kv, const CalibrationFacts& facts, Isa isa, ThreadPool& pool);

  // Adds whatever `pipeline` needs and is not there yet. kUnsupported: a stage needs a tensor that
  // is not in the table above. kInvalidInput: a tensor would not be finite in halves.
  Result<void> Add(const codec::PipelineSpec& pipeline);

  [[nodiscard]] const codec::SideInfo& side_info() const { return side_info_; }

 private:
  Result<void> AddPart(const codec::PartSpec& part, kv::KvPart which);
  Result<void> AddTensor(const codec::PartSpec& part, kv::KvPart which, size_t index,
                         const std::string& suffix);
  Result<void> AddWeights(const codec::PartSpec& part, kv::KvPart which, const std::string& name);
  Result<void> AddTables(const codec::PartSpec& part, kv::KvPart which);
  Result<void> AddScores();
  Result<const std::vector<ChannelMoments>*> Moments(const codec::PartSpec& part, kv::KvPart which,
                                                     size_t count, bool joint);
  // What errors at the end of the chain cost, in nats a position when all tokens have them: of
  // every layer [kv_heads * channels, kv_heads * channels].
  Result<std::vector<std::vector<double>>> CostAfter(const codec::PartSpec& part, kv::KvPart which,
                                                     size_t count) const;

  const CalibrationKv& kv_;
  const CalibrationFacts& facts_;
  Isa isa_;
  ThreadPool& pool_;
  codec::SideInfo side_info_;
  std::map<std::string, std::vector<ChannelMoments>> moments_;
};

constexpr int32_t kCalibrationSinkTokens = 4;

// Everything that does not depend on pipelines. `repeated` is a long text that repeats itself. Says
// how far it is by calls of `on_progress` with seconds' worth of work done of all there is, both
// in arbitrary units.
Result<CalibrationFacts> MeasureCalibrationFacts(
    model::Model& model, const CalibrationKv& kv, const CalibrationSequence& repeated,
    uint64_t seed, Isa isa, ThreadPool& pool,
    const std::function<void(size_t done, size_t total)>& on_progress);

}  // namespace kvik::eval
