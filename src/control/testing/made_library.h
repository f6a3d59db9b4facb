// SPDX-License-Identifier: Apache-2.0
// control/testing/made_library.h: libraries and speeds of made-up profiles.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/rng.h"
#include "codec/profile_library.h"
#include "control/lengths.h"
#include "control/speeds.h"

namespace kvik::control::testing {

inline codec::QualityRecord MadeQuality(const std::string& workload, double low) {
  codec::QualityRecord record;
  record.workload = workload;
  record.q = {low + 0.005, low, low + 0.01};
  return record;
}

inline codec::Profile MadeProfile(const std::string& name, uint64_t hash, double ratio,
                                  std::vector<codec::QualityRecord> quality) {
  codec::Profile profile;
  profile.name = name;
  profile.hash = hash;
  profile.fidelity = quality.empty() ? codec::Fidelity::kExact : codec::Fidelity::kLossy;
  profile.ratios = {{128, ratio}, {6144, ratio}};
  profile.quality = std::move(quality);
  return profile;
}

struct MadeProfiles {
  codec::ProfileLibrary library;
  MachineSpeeds speeds;
};

// `count` profiles of random speeds, ratios and qualities on two workloads; some share a quality.
inline MadeProfiles RandomProfiles(Rng& rng, int count) {
  MadeProfiles made;
  for (int i = 0; i < count; ++i) {
    const auto hash = static_cast<uint64_t>(i) + 1;
    const auto quality = [&] { return 0.94 + 0.005 * static_cast<double>(rng.Below(13)); };
    std::vector<codec::QualityRecord> records;
    if (rng.Below(6) != 0) {
      records = {MadeQuality("math", quality()), MadeQuality("qa", quality()),
                 MadeQuality(codec::kUnifiedWorkload, quality())};
    }
    made.library.profiles.push_back(
        MadeProfile(Format("p%02d", i), hash, 1.2 + 10 * rng.Uniform(), std::move(records)));
    ProfileSpeeds speeds;
    speeds.profile_hash = hash;
    for (size_t length = 0; length < kNumLengths; ++length) {
      speeds.encode[length] = {1000 * rng.Uniform(), 1e8 + 1e10 * rng.Uniform()};
      speeds.decode[length] = {1000 * rng.Uniform(), 1e8 + 1e10 * rng.Uniform()};
    }
    made.speeds.Set(speeds);
  }
  return made;
}

}  // namespace kvik::control::testing
