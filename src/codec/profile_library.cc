// SPDX-License-Identifier: Apache-2.0
#include "codec/profile_library.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "base/isa.h"
#include "base/sha256.h"
#include "codec/pipeline.h"

namespace kvik::codec {
namespace {

// What is hashed is a stream of numbers and of strings with their lengths in front, so that no two
// libraries give the same one.
class HashInput {
 public:
  void Number(uint64_t v) { Raw(&v, sizeof v); }
  void Real(double v) { Raw(&v, sizeof v); }
  void String(std::string_view text) {
    Number(text.size());
    Raw(text.data(), text.size());
  }
  [[nodiscard]] std::string Finish() { return ToHex(sha_.Finish()); }

 private:
  void Raw(const void* data, size_t n) { sha_.Update({static_cast<const std::byte*>(data), n}); }
  Sha256 sha_;
};

Fidelity FidelityOf(const PipelineSpec& spec, const FrameCodec& codec) {
  if (spec.selector.module != nullptr) {
    return Fidelity::kMasked;
  }
  return codec.lossy() ? Fidelity::kLossy : Fidelity::kExact;
}

}  // namespace

float QualityRecord::JudgedQ() const {
  const double low = std::clamp(q.low, 0.0, 1.0);
  const auto rounded = static_cast<float>(low);
  return static_cast<double>(rounded) > low ? std::nextafter(rounded, 0.0F) : rounded;
}

const QualityRecord* Profile::QualityFor(std::string_view workload) const {
  const QualityRecord* unified = nullptr;
  for (const QualityRecord& record : quality) {
    if (record.prompt_tokens != 0) {
      continue;
    }
    if (record.workload == workload) {
      return &record;
    }
    if (record.workload == kUnifiedWorkload) {
      unified = &record;
    }
  }
  return unified;
}

const Profile* ProfileLibrary::Find(std::string_view name) const {
  const auto it = std::find_if(profiles.begin(), profiles.end(),
                               [&](const Profile& profile) { return profile.name == name; });
  return it == profiles.end() ? nullptr : &*it;
}

const Profile* ProfileLibrary::FindHash(uint64_t hash) const {
  const auto it = std::find_if(profiles.begin(), profiles.end(),
                               [&](const Profile& profile) { return profile.hash == hash; });
  return it == profiles.end() ? nullptr : &*it;
}

std::string ProfileLibraryHash(const ProfileLibrary& library) {
  HashInput input;
  input.String("kvik.profile-library");
  input.Number(kProfileLibraryVersion);
  const ModelFacts& model = library.model;
  input.Number(model.fingerprint);
  input.Number(static_cast<uint64_t>(model.num_layers));
  input.Number(static_cast<uint64_t>(model.num_kv_heads));
  input.Number(static_cast<uint64_t>(model.head_dim));
  input.Number(model.rope_frequencies.size());
  for (const double frequency : model.rope_frequencies) {
    input.Real(frequency);
  }
  input.Real(model.rope_scale);
  std::set<std::string_view> pipelines;
  for (const Profile& profile : library.profiles) {
    pipelines.insert(profile.pipeline);
  }
  input.Number(pipelines.size());
  for (const std::string_view pipeline : pipelines) {
    input.String(pipeline);
  }
  input.Number(library.side_info->tensors().size());
  for (const auto& [name, tensor] : library.side_info->tensors()) {
    input.String(name);
    input.Number(tensor.shape.size());
    for (const int32_t extent : tensor.shape) {
      input.Number(static_cast<uint64_t>(extent));
    }
    for (const float value : tensor.values) {
      input.Number(ToF16(value).bits);
    }
  }
  return input.Finish();
}

Result<void> CompleteProfiles(ProfileLibrary& library) {
  for (Profile& profile : library.profiles) {
    const auto complete = [&]() -> Result<void> {
      KVIK_ASSIGN(const PipelineSpec spec, PipelineSpec::Parse(profile.pipeline));
      KVIK_ASSIGN(const std::unique_ptr<FrameCodec> codec,
                  FrameCodec::Create(spec, library.model, library.side_info, Isa::kScalar));
      profile.pipeline = spec.ToString();
      profile.hash = codec->profile_hash();
      profile.fidelity = FidelityOf(spec, *codec);
      return {};
    };
    if (auto done = complete(); !done) {
      return done.error().Wrap("profile " + profile.name);
    }
  }
  return {};
}

}  // namespace kvik::codec
