// SPDX-License-Identifier: Apache-2.0
// control/arm_table.h: the ways in which KV can go from one machine to another: raw, and every
// profile that both ends have speeds for. What each costs by length, and who may read it.
//
// Immutable after Build; thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "codec/profile_library.h"
#include "control/lengths.h"
#include "control/predictor.h"
#include "control/speeds.h"
#include "kv/block_key.h"

namespace kvik::control {

inline constexpr size_t kMaxArms = 64;  // raw among them
inline constexpr int32_t kRawArm = 0;
using ArmMask = uint64_t;  // bit i: arm i
inline constexpr ArmMask kAllArms = ~ArmMask{0};
constexpr ArmMask ArmBit(int32_t arm) { return ArmMask{1} << arm; }

// A workload label, resolved. Labels that a table does not know are kUnifiedWorkload's.
using WorkloadId = int32_t;
inline constexpr WorkloadId kUnified = 0;

struct Arm {
  std::string name;
  uint64_t profile_hash = kRawHash;
  kv::Fidelity fidelity = kv::Fidelity::kExact;
  std::array<ArmCost, kNumLengths> cost;
  // By workload: the lower end of the 95 % interval of its q, rounded down; 1 when exact,
  // not a number where it was never measured.
  std::vector<float> q;
};

// A lossless encoding that can be had without a library.
struct ExactProfile {
  std::string name;
  uint64_t hash = 0;
  double ratio = 1;  // as measured
};

struct ArmTableOptions {
  // label -> label of the library, e.g. {"retrieval", "qa"}.
  std::map<std::string, std::string, std::less<>> aliases{};
  std::vector<ExactProfile> exact_profiles{};  // those the library does not list
};

class ArmTable {
 public:
  // `library` may be null: then raw and `exact_profiles`. A profile without speeds of both machines
  // is no arm, nor is one whose decoding leaves out slots or whose quality was never measured.
  // kInvalidInput: more than kMaxArms; a speed or ratio that is not positive.
  static Result<ArmTable> Build(const codec::ProfileLibrary* library, const MachineSpeeds& sender,
                                const MachineSpeeds& receiver, const ArmTableOptions& options);

  [[nodiscard]] const std::vector<Arm>& arms() const { return arms_; }  // raw first, then by name
  [[nodiscard]] const Arm& arm(int32_t i) const { return arms_[static_cast<size_t>(i)]; }
  [[nodiscard]] std::optional<int32_t> Find(std::string_view name) const;
  [[nodiscard]] std::optional<int32_t> FindHash(uint64_t profile_hash) const;

  // Of a label or an alias; kUnified if neither is known. No allocation.
  [[nodiscard]] WorkloadId Workload(std::string_view label) const;
  [[nodiscard]] const std::vector<std::string>& workloads() const { return workloads_; }

  // What a block that arrives by this arm counts as.
  [[nodiscard]] kv::BlockQuality Quality(int32_t arm, WorkloadId workload) const;

  // Requests of one workload fall into classes: two with the same class may use the same arms, and
  // the classes are as fine as that allows, so no request is ever lent an arm by its neighbours.
  // Class 0 is exact; the higher, the more is allowed.
  [[nodiscard]] int32_t num_classes() const { return static_cast<int32_t>(class_masks_.size()); }
  [[nodiscard]] int32_t ClassOf(WorkloadId workload, const kv::MinQuality& quality) const;
  // Every arm of the mask satisfies `quality.Accepts(Quality(arm, workload))`, and no other does.
  [[nodiscard]] ArmMask MaskOfClass(int32_t quality_class) const {
    return class_masks_[static_cast<size_t>(quality_class)];
  }

 private:
  struct Step {
    float q = 0;  // the lowest of its arms
    int32_t quality_class = 0;
  };
  ArmTable() = default;

  std::vector<Arm> arms_;
  std::vector<std::string> workloads_;                     // by id
  std::map<std::string, WorkloadId, std::less<>> labels_;  // and aliases
  std::vector<ArmMask> class_masks_;
  std::vector<std::vector<Step>> steps_;  // by workload: q descending
};

}  // namespace kvik::control
