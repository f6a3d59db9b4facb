// SPDX-License-Identifier: Apache-2.0
#include "control/speeds.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/format.h"
#include "base/json_parse.h"

namespace kvik::control {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "kvik.profile-speeds";
constexpr int kVersion = 2;
constexpr double kLargestFixedUs = 1e9;
constexpr double kLargestFrameUs = 1e6;
constexpr double kSlowest = 1;     // byte a second
constexpr double kFastest = 1e15;  // beyond: infinity

// [[fixed_us, raw_bytes_per_s, frame_us], ...] at kLengths. JSON has no infinity: 0 stands for it,
// since a speed of 0 means nothing.
Json ToJson(const std::array<StageSpeed, kNumLengths>& stage) {
  Json list = Json::array();
  for (const StageSpeed& speed : stage) {
    const bool free = std::isinf(speed.raw_bytes_per_s);
    list.push_back(
        Json::array({speed.fixed_us, free ? 0.0 : speed.raw_bytes_per_s, speed.frame_us}));
  }
  return list;
}

Result<std::array<StageSpeed, kNumLengths>> StageFromJson(const Json& json, const char* name) {
  const auto wrong = [&] {
    return Err(ErrorCode::kInvalidInput,
               "has a profile whose \"%s\" is not %zu times three numbers", name, kNumLengths);
  };
  const auto it = json.find(name);
  if (it == json.end() || !it->is_array() || it->size() != kNumLengths) {
    return wrong();
  }
  std::array<StageSpeed, kNumLengths> stage;
  for (size_t i = 0; i < kNumLengths; ++i) {
    const Json& item = (*it)[i];
    if (!item.is_array() || item.size() != 3 ||
        !std::all_of(item.begin(), item.end(), [](const Json& n) { return n.is_number(); })) {
      return wrong();
    }
    const double fixed_us = item[0].get<double>();
    const double speed = item[1].get<double>();
    const double frame_us = item[2].get<double>();
    if (!(fixed_us >= 0 && fixed_us <= kLargestFixedUs) ||
        !(frame_us >= 0 && frame_us <= kLargestFrameUs) ||
        !(speed == 0 || (speed >= kSlowest && speed <= kFastest))) {
      return Err(ErrorCode::kInvalidInput, "has a profile whose \"%s\" is out of range", name);
    }
    stage[i] = {fixed_us, speed == 0 ? std::numeric_limits<double>::infinity() : speed, frame_us};
  }
  return stage;
}

}  // namespace

ProfileSpeeds UniformSpeeds(uint64_t profile_hash, double encode_bytes_per_s,
                            double decode_bytes_per_s) {
  ProfileSpeeds speeds;
  speeds.profile_hash = profile_hash;
  speeds.encode.fill({0, encode_bytes_per_s, 0});
  speeds.decode.fill({0, decode_bytes_per_s, 0});
  return speeds;
}

const ProfileSpeeds* MachineSpeeds::Find(uint64_t profile_hash) const {
  const auto it = std::lower_bound(
      profiles.begin(), profiles.end(), profile_hash,
      [](const ProfileSpeeds& speeds, uint64_t hash) { return speeds.profile_hash < hash; });
  return it == profiles.end() || it->profile_hash != profile_hash ? nullptr : &*it;
}

void MachineSpeeds::Set(const ProfileSpeeds& speeds) {
  const auto it = std::lower_bound(
      profiles.begin(), profiles.end(), speeds.profile_hash,
      [](const ProfileSpeeds& other, uint64_t hash) { return other.profile_hash < hash; });
  if (it != profiles.end() && it->profile_hash == speeds.profile_hash) {
    *it = speeds;
  } else {
    profiles.insert(it, speeds);
  }
}

std::string PrintSpeeds(const MachineSpeeds& speeds) {
  Json profiles = Json::array();
  for (const ProfileSpeeds& profile : speeds.profiles) {
    profiles.push_back(
        {{"hash", Format("%016llx", static_cast<unsigned long long>(profile.profile_hash))},
         {"encode", ToJson(profile.encode)},
         {"decode", ToJson(profile.decode)}});
  }
  return Json{{"format", kFormat},
              {"version", kVersion},
              {"lengths", kLengths},
              {"profiles", std::move(profiles)}}
      .dump();
}

Result<MachineSpeeds> ParseSpeeds(std::string_view text) {
  KVIK_ASSIGN(const Json json, ParseJson<Json>(text, {.max_bytes = kMaxSpeedsBytes,
                                                      .max_nesting = 6,
                                                      .max_members = kMaxSpeedsProfiles}));
  if (!json.is_object() || !json.contains("format") || json["format"] != kFormat) {
    return Err(ErrorCode::kInvalidInput, "is no table of profile speeds");
  }
  if (!json.contains("version") || json["version"] != kVersion) {
    return Err(ErrorCode::kInvalidInput, "is of another version than %d", kVersion);
  }
  if (!json.contains("lengths") || json["lengths"] != Json(kLengths)) {
    return Err(ErrorCode::kInvalidInput, "has other lengths");
  }
  if (!json.contains("profiles") || !json["profiles"].is_array() ||
      json["profiles"].size() > kMaxSpeedsProfiles) {
    return Err(ErrorCode::kInvalidInput, "has no list of at most %zu profiles", kMaxSpeedsProfiles);
  }
  MachineSpeeds speeds;
  for (const Json& item : json["profiles"]) {
    if (!item.is_object() || !item.contains("hash") || !item["hash"].is_string()) {
      return Err(ErrorCode::kInvalidInput, "has a profile without a hash");
    }
    const std::string& hash = item["hash"].get_ref<const std::string&>();
    if (hash.size() != 16 || hash.find_first_not_of("0123456789abcdef") != std::string::npos) {
      return Err(ErrorCode::kInvalidInput, "has a hash that is not 16 hexadecimal digits");
    }
    ProfileSpeeds profile;
    profile.profile_hash = std::strtoull(hash.c_str(), nullptr, 16);
    if (speeds.Find(profile.profile_hash) != nullptr) {
      return Err(ErrorCode::kInvalidInput, "lists profile %s twice", hash.c_str());
    }
    KVIK_ASSIGN(profile.encode, StageFromJson(item, "encode"));
    KVIK_ASSIGN(profile.decode, StageFromJson(item, "decode"));
    speeds.Set(profile);
  }
  return speeds;
}

}  // namespace kvik::control
