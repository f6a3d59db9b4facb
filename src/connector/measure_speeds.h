// SPDX-License-Identifier: Apache-2.0
// connector/measure_speeds.h: how fast this machine encodes and decodes each profile.
//
// Calibrated profiles are fast on KV like what they were calibrated on, and several times slower on
// anything else: symbols that their tables hardly expect are long. So give a sample of the model's
// own KV wherever there is one.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/types.h"
#include "connector/profile_set.h"
#include "control/speeds.h"
#include "kv/geometry.h"

namespace kvik::connector {

// KV of the first tokens of some text, block by block.
struct KvSample {
  kv::KvGeometry geometry;     // bf16, of the profiles' model
  std::span<std::byte> arena;  // only read
  std::vector<BlockId> blocks;
};

struct MeasureOptions {
  int32_t block_size_tokens = 16;
  int threads = 1;  // that will encode and decode; speeds are scaled by them
  int64_t budget_us_per_profile = 30'000;
  uint64_t seed = 1;
  const KvSample* sample = nullptr;  // null: KV that is made up, normally distributed
};

// Of frames of a few layers, at the lengths of the table and at shorter ones, which show what a
// frame costs whatever it holds; where a length needs more tokens than the sample has, its blocks
// come again. `done` is called after each profile. Profiles that cannot encode the KV are left out.
[[nodiscard]] control::MachineSpeeds MeasureSpeeds(
    const ProfileSet& profiles, const MeasureOptions& options, const Clock& clock,
    const std::function<void(size_t done, size_t total)>& progress = {});

// Whether `speeds` has every profile of the set, as MeasureSpeeds names them.
[[nodiscard]] bool HasSpeedsOf(const ProfileSet& profiles, const control::MachineSpeeds& speeds);

}  // namespace kvik::connector
