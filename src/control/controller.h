// SPDX-License-Identifier: Apache-2.0
// control/controller.h: the choice of a profile for each transfer to or from one peer.
//
// The envelope of the predictor says which arm should be the fastest at the measured bandwidth;
// what was observed since corrects it. docs/control.md tells the whole story. A decision is made
// once for a request and takes well under a microsecond; Decide and Observe allocate nothing.
//
// Thread-compatible. No clock: time comes with the question, chance with the call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/rng.h"
#include "control/arm_table.h"
#include "control/decision.h"
#include "control/envelope.h"
#include "control/lengths.h"
#include "control/predictor.h"
#include "control/speed_factor.h"

namespace kvik::control {

struct ControllerOptions {
  Form form = Form::kHandOver;
  Overlap overlap = Overlap::kPipelined;
  double raw_bytes_per_token = 0;  // > 0
  // A transfer of n tokens has frames_per_chunk * ceil(n / chunk_tokens) frames.
  int32_t frames_per_chunk = 1;  // layers
  int32_t chunk_tokens = 256;
  // Of a prefill of kLengths, when transfers stream behind it; 0: they do not.
  std::array<double, kNumLengths> produce_us{};

  // Residuals: an average of (observed - predicted) / raw bytes.
  double residual_alpha = 0.2;  // weight of an observation; 0: never learns them
  enum class Scope : uint8_t {
    kArm,       // one for each arm and length
    kInterval,  // one for each arm, length, quality class and piece of the envelope
  };
  Scope scope = Scope::kArm;
  // Speeds of stages, from the times that observations have of them.
  bool learn_speeds = true;
  SpeedNoise speed_noise;
  // How far a stage of one transfer is off what is expected of it: its own noise, and what is not
  // known of the machine, the arm and the link (MeanPathUs).
  double stage_noise = 0.25;
  // A residual counts half after so many decisions without a use; 0: it counts for ever.
  double forget_decisions = 200;

  // Candidates besides the envelope's arm and raw: so many pieces on either side of it; or all.
  int32_t neighbours = 2;
  bool all_candidates = true;
  // With this chance a candidate is drawn, of those that are expected to take at most
  // explore_within times the least.
  double epsilon = 0.1;
  double explore_within = 1.05;

  // More than `late_allowed` of an arm's last `late_window` uses beyond their budget although they
  // were expected in time: it sits out the next `cooldown` decisions.
  int32_t late_allowed = 3;
  int32_t late_window = 10;  // <= 32
  int32_t cooldown = 8;

  size_t ring_capacity = 256;

  // The rules of the published controller, to compare with.
  [[nodiscard]] static ControllerOptions Published();
};

// What is believed of one arm at one length now.
struct ArmBelief {
  double encode_factor = 1;  // of the tabulated time
  double decode_factor = 1;
  double residual_us_per_byte = 0;
  uint32_t uses = 0;
  int32_t cooling = 0;  // decisions to sit out
};

class Controller {
 public:
  // `table` must outlive the controller.
  Controller(const ArmTable& table, const ControllerOptions& options);

  // Nothing: no available arm is good enough for the question. Every answer is good enough.
  [[nodiscard]] std::optional<Decision> Decide(const Question& question, Rng& rng);
  // Each decision at most once; one that was given up is not observed.
  void Observe(const Decision& decision, const Observation& observation);

  // Time on the path, as believed now, without deciding anything.
  [[nodiscard]] double ExpectedUs(int32_t arm, const Question& question) const;

  [[nodiscard]] const ArmTable& table() const { return table_; }
  [[nodiscard]] const ControllerOptions& options() const { return options_; }
  [[nodiscard]] const DecisionRing& ring() const { return ring_; }
  [[nodiscard]] ArmBelief Belief(int32_t arm, size_t length) const;
  [[nodiscard]] const Envelope& EnvelopeOf(int32_t quality_class, size_t length) const;
  // Of a transfer of so many tokens.
  [[nodiscard]] double FramesOf(int64_t tokens) const;

 private:
  struct Lateness {
    uint32_t history = 0;  // bit i: the use i before the last one was late
    uint64_t until = 0;    // sits out decisions up to this one
  };

  [[nodiscard]] size_t ResidualIndex(int32_t arm, int32_t quality_class, size_t length,
                                     size_t interval) const;
  // What a residual is still worth, (0, 1].
  [[nodiscard]] double Trust(uint64_t last_use) const;
  struct Estimate {
    double predicted_us = 0;
    double expected_us = 0;
  };
  [[nodiscard]] Estimate EstimateOf(int32_t arm, int32_t quality_class, size_t length,
                                    size_t interval, double frames, const Question& question) const;
  [[nodiscard]] ArmMask Candidates(ArmMask allowed, const Envelope& envelope,
                                   size_t interval) const;

  const ArmTable& table_;
  ControllerOptions options_;
  std::vector<Envelope> envelopes_;  // [classes][lengths]
  std::vector<size_t> offsets_;      // of the residuals of envelopes_[i], by interval
  SpeedFactors encode_;
  SpeedFactors decode_;
  struct Residual {
    double us_per_byte = 0;
    uint64_t last_use = 0;
  };
  std::vector<Residual> residuals_;  // [arms][lengths], or [classes][lengths][intervals][arms]
  std::vector<Lateness> lateness_;   // [arms]
  std::vector<uint32_t> uses_;       // [arms]
  uint64_t decisions_ = 0;
  DecisionRing ring_;
};

}  // namespace kvik::control
