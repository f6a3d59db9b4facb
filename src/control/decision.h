// SPDX-License-Identifier: Apache-2.0
// control/decision.h: a question to the controller, its answer, and the record of both that is kept
// to be read later.
//
// A record is a plain value of fixed size; texts are made only when somebody reads it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "control/arm_table.h"
#include "control/predictor.h"
#include "kv/block_key.h"

namespace kvik::control {

// One request's KV that is about to move.
struct Question {
  int64_t now_us = 0;
  uint64_t request = 0;  // to find the record by; the caller's
  WorkloadId workload = kUnified;
  kv::MinQuality quality{};      // the default: exact
  int64_t tokens = 0;            // of KV to move; >= 1
  double raw_bytes = 0;          // of the same; > 0
  double us_per_byte = 0;        // of the link: Goodput::us_per_byte(); > 0
  double produce_us = 0;         // of the prefill that the transfer streams behind; 0: it does not
  double produce_parts = 0;      // as StageTimes
  double other_us = 0;           // of the budget, what is spent on other things: queue, model
  int64_t slo_us = 0;            // the budget; 0: none
  ArmMask available = kAllArms;  // encodings that exist, or the one that was asked for
};

enum class Choice : uint8_t {
  kFastest,     // the least expected time among the candidates
  kExplored,    // another candidate, to learn what it costs now
  kNoneInTime,  // nothing is expected within the budget: the least expected time of all
};

// Keep it until the transfer is over, then hand it to Observe.
struct Decision {
  uint64_t id = 0;  // 1, 2, ...
  int32_t arm = kRawArm;
  uint64_t profile_hash = kRawHash;
  Choice choice = Choice::kFastest;
  double predicted_us = 0;  // on the path, from tabulated speeds
  double expected_us = 0;   // with what was learned since
  // For Observe.
  WorkloadId workload = kUnified;
  int32_t quality_class = 0;
  uint8_t length = 0;
  uint8_t interval = 0;
  double raw_bytes = 0;
  double frames = 1;
  double produce_us = 0;
  double produce_parts = 0;
  double us_per_byte = 0;
  bool expected_in_time = true;
};

// What became of a transfer. Stages: the time each was busy, as if alone; 0: not measured.
struct Observation {
  double path_us = 0;  // what expected_us was about; 0: not measured, no residual is learned
  bool in_time = true;
  double produce_us = 0;  // 0: as the question had it
  double encode_us = 0;
  double wire_us = 0;
  double decode_us = 0;
};

struct CandidateRecord {
  int32_t arm = kRawArm;
  bool cooling = false;  // was late too often, not considered for now
  float predicted_us = 0;
  float expected_us = 0;
};

struct DecisionRecord {
  Question question;
  Decision decision;
  int32_t envelope_arm = kRawArm;               // the fastest by tabulated speeds
  double raw_us = -1;                           // expected for raw; -1: it was not available
  std::array<CandidateRecord, 8> candidates{};  // the least expected first
  uint8_t num_candidates = 0;                   // of them
  uint8_t considered = 0;                       // how many there were
  bool observed = false;
  Observation observation;
};

// The last `capacity` decisions. Thread-compatible.
class DecisionRing {
 public:
  // REQUIRES: capacity >= 1. Allocates all there is here.
  explicit DecisionRing(size_t capacity);

  DecisionRecord& Add(uint64_t id);  // forgets the oldest if there is no room
  // Null: never made, or forgotten.
  [[nodiscard]] DecisionRecord* Find(uint64_t id);
  [[nodiscard]] const DecisionRecord* Find(uint64_t id) const;
  // Oldest first, at most `limit` of the newest.
  [[nodiscard]] std::vector<DecisionRecord> Last(size_t limit) const;

 private:
  std::vector<DecisionRecord> records_;  // decision i at i % size
  uint64_t last_id_ = 0;
};

// One line for people: "joint-1.4: 41 ms expected at 0.10 Gbit/s; raw 310 ms; packed-16 64 ms;
// ...".
[[nodiscard]] std::string WhyText(const DecisionRecord& record, const ArmTable& table);
// The same with everything, one JSON object.
[[nodiscard]] std::string WhyJson(const DecisionRecord& record, const ArmTable& table);

}  // namespace kvik::control
