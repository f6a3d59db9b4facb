// SPDX-License-Identifier: Apache-2.0
#include "control/arm_table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

namespace kvik::control {
namespace {

// Of a workload that a profile was not measured on: no quality is low enough to accept it.
constexpr float kNotMeasured = std::numeric_limits<float>::quiet_NaN();

// The ratio at a length: between two that were measured by the straight line, else the nearest.
double RatioAt(const std::vector<codec::LengthRatio>& ratios, int32_t tokens) {
  const auto above = std::lower_bound(
      ratios.begin(), ratios.end(), tokens,
      [](const codec::LengthRatio& ratio, int32_t at) { return ratio.prompt_tokens < at; });
  if (above == ratios.begin()) {
    return above->cr;
  }
  if (above == ratios.end()) {
    return std::prev(above)->cr;
  }
  const codec::LengthRatio& below = *std::prev(above);
  const double share = static_cast<double>(tokens - below.prompt_tokens) /
                       static_cast<double>(above->prompt_tokens - below.prompt_tokens);
  return below.cr + share * (above->cr - below.cr);
}

Result<ArmCost> CostOf(double ratio, const StageSpeed& encode, const StageSpeed& decode) {
  if (!(ratio > 0) || !std::isfinite(ratio)) {
    return Err(ErrorCode::kInvalidInput, "has a ratio of %g", ratio);
  }
  for (const StageSpeed* stage : {&encode, &decode}) {
    if (!(stage->raw_bytes_per_s > 0) || !(stage->fixed_us >= 0) ||
        !std::isfinite(stage->fixed_us) || !(stage->frame_us >= 0) ||
        !std::isfinite(stage->frame_us)) {
      return Err(ErrorCode::kInvalidInput,
                 "has a speed of %g bytes a second after %g us, and %g us a frame",
                 stage->raw_bytes_per_s, stage->fixed_us, stage->frame_us);
    }
  }
  return ArmCost{.wire_bytes = 1 / ratio,
                 .encode_fixed_us = encode.fixed_us,
                 .decode_fixed_us = decode.fixed_us,
                 .encode_frame_us = encode.frame_us,
                 .decode_frame_us = decode.frame_us,
                 .encode_us_per_byte = 1e6 / encode.raw_bytes_per_s,
                 .decode_us_per_byte = 1e6 / decode.raw_bytes_per_s};
}

template <typename RatioOf>
Result<std::array<ArmCost, kNumLengths>> CostsOf(const std::string& name, const RatioOf& ratio_of,
                                                 const ProfileSpeeds& sender,
                                                 const ProfileSpeeds& receiver) {
  std::array<ArmCost, kNumLengths> costs;
  for (size_t i = 0; i < kNumLengths; ++i) {
    Result<ArmCost> cost = CostOf(ratio_of(kLengths[i]), sender.encode[i], receiver.decode[i]);
    if (!cost.has_value()) {
      return cost.error().Wrap("profile " + name);
    }
    costs[i] = *cost;
  }
  return costs;
}

}  // namespace

Result<ArmTable> ArmTable::Build(const codec::ProfileLibrary* library, const MachineSpeeds& sender,
                                 const MachineSpeeds& receiver, const ArmTableOptions& options) {
  ArmTable table;
  std::set<std::string> labels;
  if (library != nullptr) {
    for (const codec::Profile& profile : library->profiles) {
      for (const codec::QualityRecord& record : profile.quality) {
        labels.insert(record.workload);
      }
    }
  }
  labels.erase(codec::kUnifiedWorkload);
  table.workloads_ = {codec::kUnifiedWorkload};
  table.workloads_.insert(table.workloads_.end(), labels.begin(), labels.end());
  for (size_t i = 0; i < table.workloads_.size(); ++i) {
    table.labels_[table.workloads_[i]] = static_cast<WorkloadId>(i);
  }
  for (const auto& [alias, label] : options.aliases) {
    const auto it = table.labels_.find(label);
    table.labels_.try_emplace(alias, it == table.labels_.end() ? kUnified : it->second);
  }
  const size_t num_workloads = table.workloads_.size();

  // Raw first: its stages cost nothing unless a machine says so.
  const ProfileSpeeds free = UniformSpeeds(kRawHash, std::numeric_limits<double>::infinity(),
                                           std::numeric_limits<double>::infinity());
  const auto raw_of = [&](const MachineSpeeds& machine) -> const ProfileSpeeds& {
    const ProfileSpeeds* speeds = machine.Find(kRawHash);
    return speeds == nullptr ? free : *speeds;
  };
  Arm raw;
  raw.name = "raw";
  raw.q.assign(num_workloads, 1.0F);
  KVIK_ASSIGN(raw.cost,
              CostsOf(
                  raw.name, [](int32_t) { return 1.0; }, raw_of(sender), raw_of(receiver)));
  table.arms_.push_back(std::move(raw));

  const auto add = [&](Arm arm, const auto& ratio_of) -> Result<void> {
    const ProfileSpeeds* encode = sender.Find(arm.profile_hash);
    const ProfileSpeeds* decode = receiver.Find(arm.profile_hash);
    if (encode == nullptr || decode == nullptr || table.FindHash(arm.profile_hash)) {
      return {};
    }
    if (table.arms_.size() == kMaxArms) {
      return Err(ErrorCode::kInvalidInput, "there are more than %zu profiles to choose from",
                 kMaxArms - 1);
    }
    KVIK_ASSIGN(arm.cost, CostsOf(arm.name, ratio_of, *encode, *decode));
    table.arms_.push_back(std::move(arm));
    return {};
  };
  if (library != nullptr) {
    for (const codec::Profile& profile : library->profiles) {
      Arm arm;
      arm.name = profile.name;
      arm.profile_hash = profile.hash;
      if (profile.fidelity == codec::Fidelity::kMasked || profile.ratios.empty()) {
        continue;
      }
      const bool exact = profile.fidelity == codec::Fidelity::kExact;
      arm.fidelity = exact ? kv::Fidelity::kExact : kv::Fidelity::kLossy;
      bool measured = exact;
      for (const std::string& workload : table.workloads_) {
        const codec::QualityRecord* record = profile.QualityFor(workload);
        measured = measured || record != nullptr;
        arm.q.push_back(exact ? 1.0F : record == nullptr ? kNotMeasured : record->JudgedQ());
      }
      if (!measured) {
        continue;
      }
      KVIK_TRY(
          add(std::move(arm), [&](int32_t tokens) { return RatioAt(profile.ratios, tokens); }));
    }
  }
  for (const ExactProfile& profile : options.exact_profiles) {
    Arm arm;
    arm.name = profile.name;
    arm.profile_hash = profile.hash;
    arm.q.assign(num_workloads, 1.0F);
    KVIK_TRY(add(std::move(arm), [&](int32_t) { return profile.ratio; }));
  }
  std::sort(table.arms_.begin() + 1, table.arms_.end(),
            [](const Arm& a, const Arm& b) { return a.name < b.name; });

  // Classes: the exact arms, then one more for every quality at which another arm may be used.
  // Workloads share those that are the same arms.
  ArmMask exact_mask = 0;
  for (size_t i = 0; i < table.arms_.size(); ++i) {
    if (table.arms_[i].fidelity == kv::Fidelity::kExact) {
      exact_mask |= ArmBit(static_cast<int32_t>(i));
    }
  }
  table.class_masks_ = {exact_mask};
  table.steps_.resize(num_workloads);
  for (size_t w = 0; w < num_workloads; ++w) {
    std::map<float, ArmMask, std::greater<>> by_q;
    for (size_t i = 0; i < table.arms_.size(); ++i) {
      if (table.arms_[i].fidelity == kv::Fidelity::kLossy && !std::isnan(table.arms_[i].q[w])) {
        by_q[table.arms_[i].q[w]] |= ArmBit(static_cast<int32_t>(i));
      }
    }
    ArmMask mask = exact_mask;
    for (const auto& [q, arms] : by_q) {
      mask |= arms;
      auto it = std::find(table.class_masks_.begin(), table.class_masks_.end(), mask);
      if (it == table.class_masks_.end()) {
        it = table.class_masks_.insert(it, mask);
      }
      table.steps_[w].push_back({q, static_cast<int32_t>(it - table.class_masks_.begin())});
    }
  }
  return table;
}

std::optional<int32_t> ArmTable::Find(std::string_view name) const {
  for (size_t i = 0; i < arms_.size(); ++i) {
    if (arms_[i].name == name) {
      return static_cast<int32_t>(i);
    }
  }
  return std::nullopt;
}

std::optional<int32_t> ArmTable::FindHash(uint64_t profile_hash) const {
  for (size_t i = 0; i < arms_.size(); ++i) {
    if (arms_[i].profile_hash == profile_hash) {
      return static_cast<int32_t>(i);
    }
  }
  return std::nullopt;
}

WorkloadId ArmTable::Workload(std::string_view label) const {
  const auto it = labels_.find(label);
  return it == labels_.end() ? kUnified : it->second;
}

kv::BlockQuality ArmTable::Quality(int32_t arm, WorkloadId workload) const {
  const Arm& a = this->arm(arm);
  return {a.fidelity, a.q[static_cast<size_t>(workload)]};
}

int32_t ArmTable::ClassOf(WorkloadId workload, const kv::MinQuality& quality) const {
  int32_t quality_class = 0;
  if (quality.allow_lossy) {
    for (const Step& step : steps_[static_cast<size_t>(workload)]) {
      // Not a number allows nothing.
      if (!(step.q >= quality.q_min)) {
        break;
      }
      quality_class = step.quality_class;
    }
  }
  return quality_class;
}

}  // namespace kvik::control
