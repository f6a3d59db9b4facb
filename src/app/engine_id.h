// SPDX-License-Identifier: Apache-2.0
// app/engine_id.h: how others tell one start of a server from the next.
#pragma once

#include <string>

#include "base/clock.h"

namespace kvik::app {

// 16 hexadecimal digits, others at every start.
[[nodiscard]] std::string NewEngineId(const Clock& clock);

}  // namespace kvik::app
