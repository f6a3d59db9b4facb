// SPDX-License-Identifier: Apache-2.0
#include "app/engine_id.h"

#include <unistd.h>

#include <cinttypes>
#include <cstdio>

#include "base/rng.h"

namespace kvik::app {

std::string NewEngineId(const Clock& clock) {
  Rng rng(static_cast<uint64_t>(clock.NowMicros()), static_cast<uint64_t>(getpid()));
  char text[17];
  std::snprintf(text, sizeof(text), "%016" PRIx64, rng.Next());
  return text;
}

}  // namespace kvik::app
