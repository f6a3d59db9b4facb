// SPDX-License-Identifier: Apache-2.0
// app/machine_speeds.h: how fast this machine encodes and decodes KV: measured once, then kept.
#pragma once

#include <cstdint>
#include <string>

#include "app/runtime.h"
#include "base/clock.h"
#include "connector/profile_set.h"
#include "control/speeds.h"

namespace kvik::app {

struct MachineSpeedsOptions {
  std::string folder;  // of kept results; it is made
  int threads = 1;     // that will encode and decode
};

// "speeds" in CacheFolder().
std::string DefaultSpeedsFolder();

// Never fails: a file that cannot be read or written costs a new measurement or a warning.
// Profiles that are not in the kept file are measured, on KV that the model computes for it, and
// added. Before the first request, on the thread that owns the executor: its blocks hold garbage
// afterwards. `runtime` has bf16 KV.
control::MachineSpeeds MachineSpeedsOf(const connector::ProfileSet& profiles,
                                       const Runtime& runtime, const Clock& clock,
                                       const MachineSpeedsOptions& options);

}  // namespace kvik::app
