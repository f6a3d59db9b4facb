// SPDX-License-Identifier: Apache-2.0
#include "connector/profile_set.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "codec/pipeline.h"
#include "codec/presets.h"

namespace kvik::connector {
namespace {

// More of a chunk cost room that other chunks need.
constexpr size_t kMaxStored = 3;
// A link at which decoding, not size, says how quickly KV is read: 10 Gbit/s.
constexpr double kFastLinkBytesPerS = 1.25e9;

constexpr const char* kRawPipeline = "none -> none -> none";

struct Candidate {
  std::string name;
  std::string pipeline;
  int32_t request_tokens = 0;
  const codec::Profile* listed = nullptr;  // in the library
};

// The least of what was measured: a reader with any workload gets no less.
float MeasuredQ(const codec::Profile& profile) {
  if (profile.fidelity == codec::Fidelity::kExact) {
    return 1.0F;
  }
  float q = profile.quality.empty() ? 0.0F : 1.0F;
  for (const codec::QualityRecord& record : profile.quality) {
    q = std::min(q, record.JudgedQ());
  }
  return q;
}

// Profiles that leave slots out serve no reader that did not name them.
bool DropsSlots(const codec::Profile& profile) {
  return profile.fidelity == codec::Fidelity::kMasked;
}

double LargestRatio(const codec::Profile& profile) {
  double ratio = 0;
  for (const codec::LengthRatio& at : profile.ratios) {
    ratio = std::max(ratio, at.cr);
  }
  return ratio;
}

}  // namespace

kv::BlockQuality CodecProfile::QualityFor(std::string_view workload) const {
  if (!lossy) {
    return {};
  }
  const codec::QualityRecord* const record =
      listed == nullptr ? nullptr : listed->QualityFor(workload);
  return {kv::Fidelity::kLossy, q, kv::WorkloadTag::Of(workload),
          record != nullptr ? record->JudgedQ() : q};
}

Result<std::shared_ptr<const ProfileSet>> ProfileSet::Create(
    const codec::ModelFacts& model, std::shared_ptr<const codec::ProfileLibrary> library,
    int32_t chunk_tokens, Isa isa) {
  if (chunk_tokens < 1 || chunk_tokens > codec::kMaxFrameTokens) {
    return Err(ErrorCode::kInvalidInput, "chunks of %d tokens: 1 to %d can be had", chunk_tokens,
               codec::kMaxFrameTokens);
  }
  if (library != nullptr && library->model.fingerprint != model.fingerprint) {
    return Err(ErrorCode::kInvalidInput,
               "the profile library is for \"%s\" (fingerprint %016llx), this model has %016llx: "
               "make one for it with `kvik calibrate`",
               library->model.name.c_str(),
               static_cast<unsigned long long>(library->model.fingerprint),
               static_cast<unsigned long long>(model.fingerprint));
  }
  std::vector<Candidate> candidates;
  candidates.push_back({kRawName, kRawPipeline, 0, nullptr});
  const auto listed = [&](std::string_view name) {
    return library == nullptr ? nullptr : library->Find(name);
  };
  for (const codec::Preset& preset : codec::AllPresets()) {
    const codec::Profile* const profile = listed(preset.name);
    if (!preset.calibrated && profile == nullptr) {
      candidates.push_back(
          {std::string(preset.name), std::string(preset.pipeline), preset.request_tokens, nullptr});
    }
  }
  if (library != nullptr) {
    for (const codec::Profile& profile : library->profiles) {
      const codec::Preset* const preset = codec::FindPreset(profile.name);
      candidates.push_back({profile.name, profile.pipeline,
                            preset != nullptr ? preset->request_tokens : 0, &profile});
    }
  }
  // Raw and lossless stand at places of their own, whoever listed them. Of two names for the same
  // pipeline the library's stays: it knows what it costs.
  std::stable_sort(
      candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
        const auto rank = [](const Candidate& c) {
          return c.name == kRawName ? 0 : c.name == kLosslessName ? 1 : c.listed != nullptr ? 2 : 3;
        };
        return rank(a) < rank(b);
      });

  std::shared_ptr<ProfileSet> set(new ProfileSet());
  set->model_ = model;
  set->library_ = library;
  for (const Candidate& candidate : candidates) {
    const auto where = [&](const Error& error) {
      return error.Wrap("profile \"" + candidate.name + "\"");
    };
    auto pipeline = codec::PipelineSpec::Parse(candidate.pipeline);
    if (!pipeline.has_value()) {
      return where(pipeline.error());
    }
    auto codec = codec::FrameCodec::Create(*pipeline, model,
                                           library != nullptr ? library->side_info : nullptr, isa);
    if (!codec.has_value()) {
      if (candidate.listed == nullptr && codec.error().code == ErrorCode::kUnsupported) {
        continue;  // a preset that this model's shape does not allow
      }
      return where(codec.error());
    }
    const uint64_t hash = (*codec)->profile_hash();
    if (set->by_hash_.contains(hash)) {
      continue;  // the same under another name
    }
    CodecProfile profile;
    profile.name = candidate.name;
    profile.hash = hash;
    profile.lossy = (*codec)->lossy();
    profile.codec = std::move(codec).value();
    profile.chunk_tokens = candidate.request_tokens > 0 ? candidate.request_tokens : chunk_tokens;
    profile.q = !profile.lossy                ? 1.0F
                : candidate.listed != nullptr ? MeasuredQ(*candidate.listed)
                                              : 0.0F;
    profile.listed = candidate.listed;
    set->by_hash_.emplace(hash, set->profiles_.size());
    set->profiles_.push_back(std::move(profile));
  }
  KVIK_CHECK(set->profiles_.size() >= 2 && set->profiles_[0].name == kRawName &&
             !set->profiles_[0].lossy && set->profiles_[1].name == kLosslessName &&
             !set->profiles_[1].lossy);
  return std::shared_ptr<const ProfileSet>(std::move(set));
}

const CodecProfile* ProfileSet::Find(std::string_view name) const {
  const auto found =
      std::find_if(profiles_.begin(), profiles_.end(),
                   [&](const CodecProfile& profile) { return profile.name == name; });
  return found == profiles_.end() ? nullptr : &*found;
}

const CodecProfile* ProfileSet::FindHash(uint64_t hash) const {
  const auto found = by_hash_.find(hash);
  return found == by_hash_.end() ? nullptr : &profiles_[found->second];
}

std::vector<const CodecProfile*> ProfileSet::ForStoring(
    const control::MachineSpeeds& speeds) const {
  std::vector<const CodecProfile*> chosen = {&lossless()};
  if (library_ == nullptr) {
    return chosen;
  }
  // Of those that are good enough the one that costs least; infinity: not to be had.
  const auto add_best = [&](float threshold, const auto& cost_of) {
    const CodecProfile* best = nullptr;
    double least = std::numeric_limits<double>::infinity();
    for (const codec::Profile& listed : library_->profiles) {
      const CodecProfile* const profile = FindHash(listed.hash);
      if (profile == nullptr || !profile->lossy || DropsSlots(listed) || profile->q < threshold) {
        continue;
      }
      const double cost = cost_of(listed);
      if (cost < least) {
        best = profile;
        least = cost;
      }
    }
    if (best != nullptr && chosen.size() < kMaxStored &&
        std::find(chosen.begin(), chosen.end(), best) == chosen.end()) {
      chosen.push_back(best);
    }
  };
  const auto wire_bytes = [](const codec::Profile& listed) { return 1 / LargestRatio(listed); };
  // Seconds of a raw byte, of a long prompt.
  const auto read_s = [&](const codec::Profile& listed) {
    const control::ProfileSpeeds* const measured = speeds.Find(listed.hash);
    return measured == nullptr ? std::numeric_limits<double>::infinity()
                               : std::max(wire_bytes(listed) / kFastLinkBytesPerS,
                                          1 / measured->decode.back().raw_bytes_per_s);
  };
  add_best(0.97F, wire_bytes);
  add_best(0.97F, read_s);
  add_best(0.95F, wire_bytes);
  return chosen;
}

}  // namespace kvik::connector
