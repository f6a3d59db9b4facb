// SPDX-License-Identifier: Apache-2.0
// connector/measure_speeds.h: how fast this machine encodes and decodes each profile.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/clock.h"
#include "base/result.h"
#include "connector/profile_set.h"
#include "control/speeds.h"
#include "kv/geometry.h"

namespace kvik::connector {

struct MeasureOptions {
  int32_t block_size_tokens = 16;
  int threads = 1;  // that will encode and decode; speeds are scaled by them
  int64_t budget_us_per_profile = 30'000;
  uint64_t seed = 1;
};

// Of KV that is made up, normally distributed. `done` is called after each profile. Profiles that
// cannot encode it are left out.
[[nodiscard]] control::MachineSpeeds MeasureSpeeds(
    const ProfileSet& profiles, const MeasureOptions& options, const Clock& clock,
    const std::function<void(size_t done, size_t total)>& progress = {});

}  // namespace kvik::connector
