// SPDX-License-Identifier: Apache-2.0
// connector/load_choice.h: of all that sources have of a request's KV, what to load from where, in
// which encoding, and what to compute.
//
// Pure but for the controllers, which remember their decisions. Thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/rng.h"
#include "connector/profile_set.h"
#include "connector/source_state.h"
#include "control/decision.h"
#include "control/load_plan.h"
#include "kv/connector.h"
#include "kv/cost_model.h"
#include "transfer/objects.h"

namespace kvik::connector {

// A request as loads see it.
struct LoadFacts {
  uint64_t request = 0;
  std::vector<kv::ContentKey> keys;  // of all full blocks
  int32_t num_loadable = 0;
  int32_t num_tokens = 0;
  kv::MinQuality quality;
  kv::NumericsTag numerics;
  std::string workload;
  int64_t slo_end_us = 0;  // when the first token should be there; 0: no matter
};

// What one source said. Indices are of `facts.keys`.
struct FoundAt {
  size_t source = 0;
  transfer::FoundObject found;
};

// One object that serves a request.
struct LoadCandidate {
  size_t source = 0;
  const CodecProfile* profile = nullptr;
  kv::ObjectKey key;
  kv::BlockRange object;  // blocks that it holds
  kv::BlockRange wanted;  // those of them to load
  bool live = false;      // it is encoded when it is asked for
  kv::BlockQuality quality;
  double wire_bytes = 0;
  double decode_us = 0;
  double ready_in_us = 0;
  double compute_weight = 1;  // control::LoadChunk
};

struct LoadRules {
  const CodecProfile* fixed = nullptr;  // the only one to use; null: adaptive
  int32_t block_size_tokens = 16;
  double raw_bytes_per_block = 0;
  kv::CostModel compute;
  double compute_factor = 1;
  // A source that has promised KV to this request, and how many times computing what it has counts.
  std::optional<size_t> promised_by;
  double promised_compute_weight = 1;
  double compute_share = 1;
  int32_t step_tokens = 512;
  int32_t frames_per_chunk = 1;
};

// The controller's decision for a source, to be observed.
struct SourceDecision {
  size_t source = 0;
  bool live = false;
  int generation = 0;  // of the controller
  control::Decision decision;
};

struct LoadChoice {
  std::vector<LoadCandidate> loads;  // ascending, disjoint
  control::LoadPlan plan;
  std::vector<SourceDecision> decisions;
};

// Whether what a source said can be true and is of use for the request at all.
[[nodiscard]] bool Plausible(const LoadFacts& facts, const ProfileSet& profiles,
                             const LoadRules& rules, const transfer::FoundObject& found);

// What KV of this profile is worth to one reader: `label` is what comes with it, `measured` what
// the reader's library says of the profile for its workload. KV is approximated once only, so a
// label no worse than the profile's own (the least over workloads) says nothing beyond the profile.
[[nodiscard]] kv::BlockQuality QualityFor(const CodecProfile& profile,
                                          const kv::BlockQuality& label,
                                          const kv::BlockQuality& measured);
[[nodiscard]] inline kv::BlockQuality QualityFor(const CodecProfile& profile,
                                                 const kv::BlockQuality& label,
                                                 std::string_view workload) {
  return QualityFor(profile, label, profile.QualityFor(workload));
}

// Everything in `found` is plausible. Loads cover blocks of `missing` (ascending, not adjacent)
// only, and each is good enough for the request.
[[nodiscard]] LoadChoice ChooseLoads(const LoadFacts& facts, const ProfileSet& profiles,
                                     const LoadRules& rules, std::span<const FoundAt> found,
                                     std::span<const kv::BlockRange> missing,
                                     std::span<SourceState* const> sources, int64_t now_us,
                                     Rng& rng);

// One line for people: what is loaded, how long that and its alternatives take, and what the
// controllers say. Every amount is of this request: a block counts once.
[[nodiscard]] std::string WhyText(const LoadChoice& choice, const LoadRules& rules,
                                  std::span<SourceState* const> sources);

}  // namespace kvik::connector
