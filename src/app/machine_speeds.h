// SPDX-License-Identifier: Apache-2.0
// app/machine_speeds.h: how fast this machine encodes and decodes KV: measured once, then kept.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "connector/profile_set.h"
#include "control/speeds.h"

namespace kvik::app {

struct MachineSpeedsOptions {
  std::string folder;    // of kept results; it is made
  std::string numerics;  // Model::numerics_tag()
  int32_t block_size_tokens = 16;
  int threads = 1;  // that will encode and decode
};

// "speeds" in CacheFolder().
std::string DefaultSpeedsFolder();

// Never fails: a file that cannot be read or written costs a new measurement or a warning.
// Profiles that are not in the kept file are measured and added.
control::MachineSpeeds MachineSpeedsOf(const connector::ProfileSet& profiles, const Clock& clock,
                                       const MachineSpeedsOptions& options);

}  // namespace kvik::app
