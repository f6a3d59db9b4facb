// SPDX-License-Identifier: Apache-2.0
// control/testing/regret_study.h: the controller in a made world, beside an oracle and simpler
// rules.
//
// Requests of every workload, length and quality move KV over a link whose bandwidth jumps, between
// machines whose speeds drift and are not what the table says. The oracle knows everything that
// will happen to a transfer, its noise included, and takes the least time among the arms that are
// good enough. Everybody meets the same requests and the same noise. Time is simulated: what became
// of a transfer is known when it ends, and the next one may have started before.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "codec/profile_library.h"
#include "control/arm_table.h"
#include "control/controller.h"
#include "control/goodput.h"
#include "control/predictor.h"
#include "control/speeds.h"

namespace kvik::control::testing {

// Speeds as one core of a machine with AVX-512 has them, times `scale`, by the kind of a profile.
[[nodiscard]] MachineSpeeds TypicalSpeeds(const codec::ProfileLibrary& library, double scale);

// A library from its two files.
[[nodiscard]] Result<codec::ProfileLibrary> ReadLibrary(const std::string& folder);

enum class World : uint8_t {
  // 60 s at 2 Gbit/s, 100 Mbit/s from 20 s to 40 s; decoding takes twice as long from 30 s on.
  kDrop,
  // Bandwidth jumps by a factor of four, up or down, every few seconds, within 0.1 to 25 Gbit/s;
  // encoding and decoding drift by up to a factor of two, and each profile's by up to 1.25.
  kSteps,
};

struct StudyOptions {
  World world = World::kSteps;
  Form form = Form::kHandOver;
  Overlap overlap = Overlap::kSerial;
  int32_t decisions = 600;
  double noise = 0.2;     // of wire, encoding and decoding of each transfer (standard deviation)
  double mismatch = 0.1;  // of each arm's real speeds against the table
  uint64_t seed = 1;
};

enum class Rule : uint8_t {
  kController,
  kFirstKept,  // per quality and length the envelope's arm at the first bandwidth, for ever
  kModelFree,  // epsilon-greedy on the average time per byte of every arm, no model
  kRaw,
  kKnowsMeans,  // everything but the noise: what no rule can beat that has to guess it
};

struct Policy {
  std::string name{};
  Rule rule = Rule::kController;
  ControllerOptions controller{};  // form, overlap and geometry are the study's
  GoodputOptions goodput{};
  bool knows_bandwidth = false;  // the true one, without noise, in place of the measured one
};

struct StudyResult {
  int64_t decisions = 0;
  double time_us = 0;  // on the path, of all
  double oracle_us = 0;
  double ratio_sum = 0;  // of time over the oracle's
  int64_t with_slo = 0;
  int64_t late = 0;
  int64_t oracle_late = 0;
  int64_t poor = 0;  // arms that were not good enough for their request

  void Add(const StudyResult& other);
  [[nodiscard]] double MeanRegret() const { return ratio_sum / static_cast<double>(decisions) - 1; }
  [[nodiscard]] double TotalRegret() const { return time_us / oracle_us - 1; }
  [[nodiscard]] double LateShare() const;
  [[nodiscard]] double OracleLateShare() const;
};

[[nodiscard]] StudyResult RunStudy(const codec::ProfileLibrary& library, const ArmTable& table,
                                   const StudyOptions& options, const Policy& policy);

// The policies that are compared: the controller, what it is without each part, simpler rules.
[[nodiscard]] std::vector<Policy> StudyPolicies();

}  // namespace kvik::control::testing
