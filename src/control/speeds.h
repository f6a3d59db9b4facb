// SPDX-License-Identifier: Apache-2.0
// control/speeds.h: how fast a machine encodes and decodes each profile, by length of prompt. It is
// measured once on every machine and told to peers, because a transfer goes at the sender's speed
// of encoding and the receiver's speed of decoding.
//
// Pure functions and plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "control/lengths.h"

namespace kvik::control {

// The profile that is no encoding at all: pages as they are.
inline constexpr uint64_t kRawHash = 0;

// A transfer keeps a stage busy for frame_us of each of its frames and for its bytes, after
// fixed_us, beside which nothing else runs.
struct StageSpeed {
  double fixed_us = 0;         // of one transfer, whatever its size; >= 0
  double raw_bytes_per_s = 0;  // of the KV, not of the encoding; > 0, infinity: costs nothing
  double frame_us = 0;         // of one frame, whatever its size; >= 0
  friend bool operator==(const StageSpeed&, const StageSpeed&) = default;
};

struct ProfileSpeeds {
  uint64_t profile_hash = kRawHash;
  std::array<StageSpeed, kNumLengths> encode;  // at kLengths
  std::array<StageSpeed, kNumLengths> decode;
  friend bool operator==(const ProfileSpeeds&, const ProfileSpeeds&) = default;
};

// The same speed at every length, without fixed costs.
[[nodiscard]] ProfileSpeeds UniformSpeeds(uint64_t profile_hash, double encode_bytes_per_s,
                                          double decode_bytes_per_s);

struct MachineSpeeds {
  std::vector<ProfileSpeeds> profiles;  // by hash, ascending, each once

  // Null: this machine cannot do it, or never measured it. Raw need not be listed.
  [[nodiscard]] const ProfileSpeeds* Find(uint64_t profile_hash) const;
  // Adds or replaces.
  void Set(const ProfileSpeeds& speeds);
  friend bool operator==(const MachineSpeeds&, const MachineSpeeds&) = default;
};

inline constexpr size_t kMaxSpeedsBytes = size_t{64} << 10;
inline constexpr size_t kMaxSpeedsProfiles = 256;

// One line of JSON, for a file beside the cache and for a peer.
[[nodiscard]] std::string PrintSpeeds(const MachineSpeeds& speeds);
// From anywhere: kInvalidInput with a clause that wants a subject, for text that is too long, not
// of this format, or holds a number out of its range.
[[nodiscard]] Result<MachineSpeeds> ParseSpeeds(std::string_view json);

}  // namespace kvik::control
